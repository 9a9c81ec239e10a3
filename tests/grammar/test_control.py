"""Control tokens in grammars: asked for by name, and spelled by nothing."""

from __future__ import annotations

import json

import numpy as np

from asyncpage.grammar.automaton import Automaton
from asyncpage.grammar.compile import compile_source
from asyncpage.grammar.control import told_bytes
from asyncpage.grammar.lexicon import Lexicon
from asyncpage.grammar.source import GrammarSource


def test_a_vocabulary_with_every_byte_says_a_control_token_by_itself_or_as_text_and_no_other_way() -> None:
    texts = [bytes([byte]) for byte in range(256)]
    words = [told_bytes(text, is_control=False) for text in texts] + [told_bytes(b"[X]", is_control=True)]
    assert words[:255] == texts[:255]
    automaton = Automaton(compile_source(GrammarSource("structure", json.dumps({"control": "[X]"}))), Lexicon(words))

    def allowed(state: int) -> list[int]:
        return np.flatnonzero(np.unpackbits(automaton.mask(state), bitorder="little")).tolist()

    assert allowed(automaton.start) == [ord("["), 256]
    assert automaton.may_end(automaton.advance(automaton.start, 256))
    state = automaton.start
    for letter in b"[X]":
        state = automaton.advance(state, letter)
    assert automaton.may_end(state)
    assert allowed(state) == []
