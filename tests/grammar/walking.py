"""A network walked byte by byte, with an explicit stack: the plain reading of what it means, for tests."""

from __future__ import annotations

import random
from collections.abc import Iterator

from asyncpage.grammar.compile import compile_source
from asyncpage.grammar.network import Network
from asyncpage.grammar.source import GrammarKind, GrammarSource

Stack = tuple[tuple[int, int], ...]  # (final state, state to go back to) of every call that is open
Place = tuple[int, Stack]


class Walk:
    """All places that a text may have led to."""

    def __init__(self, network: Network) -> None:
        self._edges: dict[int, list[tuple[int, int, int]]] = {}
        self._jumps: dict[int, list[int]] = {}
        self._calls: dict[int, list[tuple[int, int]]] = {}
        for source, low, high, target in network.edges.tolist():
            self._edges.setdefault(source, []).append((low, high, target))
        for source, target in network.jumps.tolist():
            self._jumps.setdefault(source, []).append(target)
        for source, rule, target in network.calls.tolist():
            self._calls.setdefault(source, []).append((rule, target))
        self._starts = network.starts.tolist()
        self._finals = network.finals.tolist()
        self._end: Place = (self._finals[0], ())
        self.start = self._closed({(self._starts[0], ())})

    def accepts(self, data: bytes) -> bool:
        return self.is_end(self.after(self.start, data))

    def after(self, places: frozenset[Place], data: bytes) -> frozenset[Place]:
        for byte in data:
            places = self.step(places, byte)
        return places

    def step(self, places: frozenset[Place], byte: int) -> frozenset[Place]:
        return self._closed(
            {
                (target, stack)
                for state, stack in places
                for low, high, target in self._edges.get(state, ())
                if low <= byte <= high
            }
        )

    def is_end(self, places: frozenset[Place]) -> bool:
        return self._end in places

    def ways(self, places: frozenset[Place]) -> list[tuple[int, int]]:
        """The byte ranges that lead on."""
        return sorted({(low, high) for state, _ in places for low, high, _ in self._edges.get(state, ())})

    def _closed(self, places: set[Place]) -> frozenset[Place]:
        waiting = list(places)
        while waiting:
            state, stack = waiting.pop()
            reached: list[Place] = [(target, stack) for target in self._jumps.get(state, ())]
            for rule, target in self._calls.get(state, ()):
                reached.append((self._starts[rule], (*stack, (self._finals[rule], target))))
            if stack and stack[-1][0] == state:
                reached.append((stack[-1][1], stack[:-1]))
            for place in reached:
                if place not in places:
                    places.add(place)
                    waiting.append(place)
        return frozenset(places)


def compiled(kind: GrammarKind, text: str = "") -> Walk:
    return Walk(compile_source(GrammarSource(kind, text)))


def sample(walk: Walk, rng: random.Random, *, most: int = 400) -> bytes | None:
    """A text by chance, None when it is not over after `most` bytes. Past half of them it takes the shortest way."""
    places, data = walk.start, bytearray()
    while len(data) < most:
        ways = walk.ways(places)
        if walk.is_end(places) and (not ways or rng.random() < 0.2 or len(data) > most // 2):
            return bytes(data)
        low, high = rng.choice(list(_preferred(ways, data, rng, len(data) > most // 3)))
        byte = rng.randint(low, high)
        places = walk.step(places, byte)
        assert places, "a way on leads nowhere"
        data.append(byte)
    return None


def _preferred(
    ways: list[tuple[int, int]], data: bytearray, rng: random.Random, wants_end: bool
) -> Iterator[tuple[int, int]]:
    """Late in a text, what closes strings, lists and objects comes first."""
    closing = [(byte, byte) for byte in b'"]}' if any(low <= byte <= high for low, high in ways)]
    yield from closing if wants_end and closing else ways
