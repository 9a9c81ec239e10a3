"""Small networks by hand: parts that are put together into a `Network`, for tests that need no compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from asyncpage.grammar.network import Network


class Build:
    """Collects states, edges, jumps and calls. Every part is a function from a start state to an end state."""

    def __init__(self, rules: int = 1) -> None:
        self.states = 0
        self.edges: list[tuple[int, int, int, int]] = []
        self.jumps: list[tuple[int, int]] = []
        self.calls: list[tuple[int, int, int]] = []
        self.ends = [(self.state(), self.state()) for _ in range(rules)]

    def state(self) -> int:
        self.states += 1
        return self.states - 1

    def rule(self, number: int, part: Part) -> None:
        start, final = self.ends[number]
        self.jumps.append((part(self, start), final))

    def network(self) -> Network:
        def column(rows: Sequence[tuple[int, ...]], width: int) -> np.ndarray:
            return np.array(rows, dtype=np.int32).reshape(-1, width)

        starts, finals = zip(*self.ends, strict=True)
        return Network(
            self.states,
            np.array(starts, dtype=np.int32),
            np.array(finals, dtype=np.int32),
            column(self.edges, 4),
            column(self.jumps, 2),
            column(self.calls, 3),
        )


Part = Callable[[Build, int], int]


def text(data: bytes) -> Part:
    def part(build: Build, at: int) -> int:
        for byte in data:
            after = build.state()
            build.edges.append((at, byte, byte, after))
            at = after
        return at

    return part


def byte(*spans: tuple[int, int]) -> Part:
    def part(build: Build, at: int) -> int:
        after = build.state()
        build.edges.extend((at, low, high, after) for low, high in spans)
        return after

    return part


def sequence(*parts: Part) -> Part:
    def whole(build: Build, at: int) -> int:
        for part in parts:
            at = part(build, at)
        return at

    return whole


def any_of(*parts: Part) -> Part:
    def whole(build: Build, at: int) -> int:
        after = build.state()
        for part in parts:
            build.jumps.append((part(build, at), after))
        return after

    return whole


def star(inner: Part) -> Part:
    def whole(build: Build, at: int) -> int:
        loop = build.state()
        build.jumps.append((at, loop))
        build.jumps.append((inner(build, loop), loop))
        return loop

    return whole


def call(rule: int) -> Part:
    def part(build: Build, at: int) -> int:
        after = build.state()
        build.calls.append((at, rule, after))
        return after

    return part


def up_to(most: int, inner: Part) -> Part:
    """None to `most` of them, one state after another."""

    def whole(build: Build, at: int) -> int:
        after = build.state()
        for _ in range(most):
            build.jumps.append((at, after))
            at = inner(build, at)
        build.jumps.append((at, after))
        return after

    return whole


def network(*rules: Part) -> Network:
    """A network of these rules, the first is the root."""
    build = Build(len(rules))
    for number, part in enumerate(rules):
        build.rule(number, part)
    return build.network()


TAIL = byte((0x80, 0xBF))
CHARACTER = any_of(
    byte((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7F)),
    sequence(byte((0xC2, 0xDF)), TAIL),
    sequence(byte((0xE0, 0xE0)), byte((0xA0, 0xBF)), TAIL),
    sequence(byte((0xE1, 0xEC), (0xEE, 0xEF)), TAIL, TAIL),
    sequence(byte((0xED, 0xED)), byte((0x80, 0x9F)), TAIL),
    sequence(byte((0xF0, 0xF0)), byte((0x90, 0xBF)), TAIL, TAIL),
    sequence(byte((0xF1, 0xF3)), TAIL, TAIL, TAIL),
    sequence(byte((0xF4, 0xF4)), byte((0x80, 0x8F)), TAIL, TAIL),
    sequence(text(b"\\"), byte((0x22, 0x22), (0x2F, 0x2F), (0x5C, 0x5C), (0x62, 0x62), (0x6E, 0x6E), (0x74, 0x74))),
)
SPACE = up_to(1, byte((0x20, 0x20), (0x0A, 0x0A)))
DIGITS = sequence(byte((0x30, 0x39)), star(byte((0x30, 0x39))))

JSON_VALUE, JSON_STRING, JSON_OBJECT, JSON_ARRAY = 1, 2, 3, 4


def json_rules() -> tuple[Part, ...]:
    """Rules 0 to 4: any JSON object, then value, string, object, array."""
    pair = sequence(call(JSON_STRING), SPACE, text(b":"), SPACE, call(JSON_VALUE), SPACE)
    item = sequence(call(JSON_VALUE), SPACE)
    number = sequence(up_to(1, text(b"-")), DIGITS, up_to(1, sequence(text(b"."), DIGITS)))
    return (
        call(JSON_OBJECT),
        any_of(
            call(JSON_STRING), call(JSON_OBJECT), call(JSON_ARRAY), number, text(b"true"), text(b"false"), text(b"null")
        ),
        sequence(text(b'"'), star(CHARACTER), text(b'"')),
        sequence(text(b"{"), SPACE, up_to(1, sequence(pair, star(sequence(text(b","), SPACE, pair)))), text(b"}")),
        sequence(text(b"["), SPACE, up_to(1, sequence(item, star(sequence(text(b","), SPACE, item)))), text(b"]")),
    )
