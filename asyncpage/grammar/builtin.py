"""The built-in backend: networks compiled here, walked by automata that all answers of a grammar share.

INVARIANT: an answer whose grammar's automaton is full goes on in a fresh one, as if it had been there from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar
from weakref import WeakSet

from asyncpage.grammar.automaton import DEAD, Automaton
from asyncpage.grammar.backend import API, Bits
from asyncpage.grammar.configuration import GrammarFull
from asyncpage.grammar.lexicon import Lexicon
from asyncpage.grammar.masks import MaskCache
from asyncpage.grammar.network import Network
from asyncpage.grammar.source import GrammarSource

T = TypeVar("T")


class BuiltinBackend:
    name = "builtin"
    api = API

    def missing(self) -> str:
        return ""

    def compile(self, source: GrammarSource) -> bytes:
        from asyncpage.grammar.compile import compile_source  # which the executor does not need

        return compile_source(source).to_bytes()

    def reader(self, token_bytes: Sequence[bytes], vocab_size: int) -> BuiltinReader:
        return BuiltinReader(Lexicon(token_bytes, vocab_size))


class BuiltinReader:
    """One trie, and one bound for all masks."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon
        self._masks = MaskCache()

    def open(self, compiled: bytes) -> BuiltinGrammar:
        return BuiltinGrammar(Network.from_bytes(compiled), self._lexicon, self._masks)


class BuiltinGrammar:
    """`automaton`: the one that new answers begin in; those that began before may be in others."""

    def __init__(self, network: Network, lexicon: Lexicon, masks: MaskCache) -> None:
        self._parts = (network, lexicon, masks)
        self._living: WeakSet[Automaton] = WeakSet()
        self.automaton = self.renew()

    @property
    def size_bytes(self) -> int:
        return sum(automaton.size_bytes for automaton in self._living)

    def begin(self) -> BuiltinFollower:
        return BuiltinFollower(self)

    def renew(self) -> Automaton:
        """A fresh automaton; the one before goes when the last answer in it has gone."""
        self.automaton = Automaton(*self._parts)
        self._living.add(self.automaton)
        return self.automaton


class BuiltinFollower:
    """A state of an automaton, and the tokens that led there."""

    def __init__(self, grammar: BuiltinGrammar) -> None:
        self._grammar = grammar
        self._automaton = grammar.automaton
        self._state = self._automaton.start
        self._tokens: list[int] = []

    def advance(self, token: int) -> bool:
        self._state = self._with_room(lambda: self._automaton.advance(self._state, token))
        self._tokens.append(token)
        return self._state != DEAD

    def mask(self) -> Bits:
        return self._with_room(lambda: self._automaton.mask(self._state))

    def may_end(self) -> bool:
        return self._automaton.may_end(self._state)

    def _with_room(self, work: Callable[[], T]) -> T:
        """The ways of other answers fill an automaton: then this one goes its own again, in a fresh one."""
        try:
            return work()
        except GrammarFull:
            self._automaton = automaton = self._grammar.renew()
            self._state = automaton.start
            for token in self._tokens:
                self._state = automaton.advance(self._state, token)
            return work()
