"""Every grammar backend keeps the contract: a random answer is what was asked for."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from asyncpage.errors import RequestError
from asyncpage.grammar import llguidance_backend
from asyncpage.grammar.backend import GrammarBackend, GrammarLimit, Reader
from asyncpage.grammar.backend_registry import BUILT_IN, load_backend
from asyncpage.grammar.source import GrammarSource

WORDS = [
    b"",
    b'{"',
    b'":',
    b'", "',
    b"true",
    b"null",
    b"}",
    b"abc",
    b"123",
    "é".encode(),
    b"ab",
    b"yes",
    b"no",
    b"[",
    b"]",
]
VOCABULARY = [*(bytes([byte]) for byte in range(256)), *WORDS]
SIZE = len(VOCABULARY) + 6  # the model's head is wider


every_backend = pytest.mark.parametrize(
    "name",
    [
        *(name for name in BUILT_IN if name != "xgrammar"),
        pytest.param("xgrammar", marks=pytest.mark.extras),
    ],
)


@cache
def opened(name: str) -> tuple[GrammarBackend, Reader]:
    backend = load_backend(name)
    return backend, backend.reader(VOCABULARY, SIZE)


def bits_of(mask: np.ndarray) -> list[int]:
    assert len(mask) == (SIZE + 7) // 8
    return np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()


def answers(name: str, source: GrammarSource, *, most: int, tries: int = 40) -> list[bytes]:
    """Complete random answers, drawn from the masks; those that go on too long are left out."""
    backend, reader = opened(name)
    grammar = reader.open(backend.compile(source))
    assert grammar.size_bytes > 0
    found = []
    for seed in range(tries):
        chance = random.Random(seed)
        follower, said = grammar.begin(), b""
        for _ in range(most):
            allowed = bits_of(follower.mask())
            assert all(token < len(VOCABULARY) and VOCABULARY[token] for token in allowed)
            if follower.may_end() and (not allowed or chance.random() < 0.4):
                found.append(said)
                break
            assert allowed, said
            token = chance.choice(allowed)
            assert follower.advance(token)
            said += VOCABULARY[token]
    return found


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string"},
        "b": {"enum": ["x", "y", 3]},
        "c": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        "d": {"$ref": "#/$defs/number"},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
    "$defs": {"number": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
}


def fits_schema(text: str) -> bool:
    found = json.loads(text)
    return (
        found.keys() <= set("abcd")
        and isinstance(found["a"], str)
        and found["b"] in ("x", "y", 3)
        and len(found.get("c", [])) <= 2
        and all(item in (True, False) for item in found.get("c", []))
        and (found.get("d") is None or type(found["d"]) is int)
    )


@every_backend
@pytest.mark.parametrize(
    ("source", "fits"),
    [
        (GrammarSource("regex", "[ab]{2,3}c|é+"), lambda text: re.fullmatch("[ab]{2,3}c|é+", text)),
        (GrammarSource("choice", '["yes", "no", "a\\"b", "é"]'), lambda text: text in ("yes", "no", 'a"b', "é")),
        (GrammarSource("json_schema", json.dumps(SCHEMA)), fits_schema),
        (GrammarSource("json_object"), lambda text: isinstance(json.loads(text), dict)),
        (GrammarSource("grammar", 'root ::= "a" [0-9]+ | "b"'), lambda text: re.fullmatch("a[0-9]+|b", text)),
    ],
    ids=lambda value: value.kind if isinstance(value, GrammarSource) else "",
)
def test_random_answers_are_what_was_asked_for(name: str, source: GrammarSource, fits: Callable[[str], Any]) -> None:
    found = answers(name, source, most=150)
    assert len(found) > 10
    for said in found:
        # A library may take bytes for characters that are none, as half a surrogate pair, inside of strings.
        assert fits(said.decode(errors="replace" if name == "xgrammar" else "strict")), said


@every_backend
def test_a_token_that_is_not_allowed_is_not_taken_and_a_complete_answer_takes_none(name: str) -> None:
    backend, reader = opened(name)
    grammar = reader.open(backend.compile(GrammarSource("choice", '["yes"]')))
    follower = grammar.begin()
    assert not follower.may_end()
    # Where only one text may follow, a library may insist on the way that it cuts that text.
    assert {b"yes"} <= {VOCABULARY[token] for token in bits_of(follower.mask())} <= {b"y", b"yes"}
    assert follower.advance(VOCABULARY.index(b"yes"))
    assert follower.may_end()
    assert bits_of(follower.mask()) == []
    assert not follower.advance(VOCABULARY.index(b"no"))
    assert not grammar.begin().advance(VOCABULARY.index(b"no"))


@every_backend
def test_answers_of_one_grammar_do_not_touch_each_other(name: str) -> None:
    backend, reader = opened(name)
    grammar = reader.open(backend.compile(GrammarSource("regex", "ab|ba")))
    first, second = grammar.begin(), grammar.begin()
    assert first.advance(ord("a"))
    assert second.advance(ord("b"))
    assert bits_of(first.mask()) == [ord("b")]
    assert bits_of(second.mask()) == [ord("a")]


@every_backend
@pytest.mark.parametrize("size", [len(VOCABULARY), 272, 279, 280])
def test_a_mask_has_as_few_bytes_as_hold_the_vocabulary_and_no_bit_behind_it(name: str, size: int) -> None:
    backend = load_backend(name)
    reader = backend.reader(VOCABULARY, size)
    follower = reader.open(backend.compile(GrammarSource("regex", "a|yes"))).begin()
    assert follower.mask().shape == (-(-size // 8),)
    may_come = np.flatnonzero(np.unpackbits(follower.mask(), bitorder="little")).tolist()
    assert {VOCABULARY[token] for token in may_come} == {b"a", b"y", b"yes"}
    assert follower.advance(ord("a"))
    assert follower.may_end()
    assert not follower.mask().any()


@every_backend
@pytest.mark.parametrize(
    "source",
    [
        GrammarSource("regex", "("),
        GrammarSource("json_schema", '{"not": {"type": "string"}}'),
        GrammarSource("json_schema", '{"type": "str"}'),
        GrammarSource("grammar", "root ::= other"),
    ],
    ids=lambda source: source.text,
)
def test_what_cannot_be_enforced_is_refused(name: str, source: GrammarSource) -> None:
    with pytest.raises(RequestError) as caught:
        load_backend(name).compile(source)
    assert caught.value.failure.status == 400


def test_llguidance_stops_at_an_ambiguity_and_says_so() -> None:
    backend, reader = opened("llguidance")
    either = GrammarSource("grammar", 'root ::= e\ne ::= "a" | e e')
    with patch.dict(llguidance_backend.LIMITS, step_max_items=200):
        follower = reader.open(backend.compile(either)).begin()

    def go_on() -> None:
        for _ in range(100):
            assert ord("a") in bits_of(follower.mask())
            assert follower.advance(ord("a"))

    with pytest.raises(GrammarLimit, match="too many ways"):
        go_on()


def test_llguidance_takes_a_grammars_text_and_its_answers_into_account() -> None:
    backend, reader = opened("llguidance")
    small, large = (reader.open(backend.compile(GrammarSource("regex", "a" * size))) for size in (10, 1000))
    before = large.size_bytes
    assert before > small.size_bytes
    followers = [large.begin() for _ in range(10)]
    assert large.size_bytes > before
    del followers
    assert large.size_bytes == before
