"""Writes counted repetitions: so many times at least, so many at most, with few states for large counts.

Strings of bounded length and arrays use it, and GBNF's counts.

A count of up to 2,048 is a chain: one way is open at every place, and each place is like the next, so that they share
what is found out about them at run time. A larger one is a chain of blocks, each a rule of 1,024 (or its square) times;
behind every whole block may come a last one that is cut short. Two ways are open then, and a million takes five
thousand states.

INVARIANT: exactly the counts within the bounds match.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncpage.grammar.builder import NetworkBuilder

_BLOCK = 1_024
_CHAIN = 2_048  # up to here a chain, which keeps one way open, and whose places are alike to a mask

Write = Callable[[int, int], None]


def repeat(builder: NetworkBuilder, write: Write, low: int, high: int | None, source: int, target: int) -> None:
    """What `write` writes between two states, `low` to `high` times, or any number of times from `low` on.

    `write` is called with one state for both ends where it loops.
    """
    counter = _Counter(builder, write)
    if high is None:
        loop = builder.state()
        counter.exactly(max(low - 1, 0), source, loop)
        after = loop if low == 0 else builder.state()
        write(loop, after)
        builder.jump(after, loop)
        builder.jump(after, target)
    elif low <= high:
        after = builder.state()
        counter.exactly(low, source, after)
        counter.at_most(high - low, after, target)


class _Counter:
    def __init__(self, builder: NetworkBuilder, write: Write) -> None:
        self._builder = builder
        self._write = write
        self._whole: dict[int, int] = {}
        self._cut: dict[int, int] = {}

    def exactly(self, count: int, source: int, target: int) -> None:
        while count:
            size = _block(count)
            count -= size
            after = self._builder.state() if count else target
            self._once(size, source, after)
            source = after
        if source != target:
            self._builder.jump(source, target)

    def at_most(self, count: int, source: int, target: int) -> None:
        while count:
            size = _block(count)
            self._fewer_than(size, source, target)
            after = self._builder.state()
            self._once(size, source, after)
            source = after
            count -= size
        self._builder.jump(source, target)

    def _once(self, size: int, source: int, target: int) -> None:
        """A whole block."""
        if size == 1:
            self._write(source, target)
            return
        rule = self._whole.get(size)
        if rule is None:
            rule = self._whole[size] = self._builder.rule()
            at, inner = self._builder.start(rule), size // _BLOCK
            for left in range(_BLOCK - 1, -1, -1):
                after = self._builder.state() if left else self._builder.final(rule)
                self._once(inner, at, after)
                at = after
        self._builder.call(source, rule, target)

    def _fewer_than(self, size: int, source: int, target: int) -> None:
        """A block that is cut short, down to nothing."""
        if size == 1:
            self._builder.jump(source, target)
            return
        rule = self._cut.get(size)
        if rule is None:
            rule = self._cut[size] = self._builder.rule()
            at, inner, final = self._builder.start(rule), size // _BLOCK, self._builder.final(rule)
            for left in range(_BLOCK - 1, -1, -1):
                self._fewer_than(inner, at, final)
                if left:
                    after = self._builder.state()
                    self._once(inner, at, after)
                    at = after
        self._builder.call(source, rule, target)


def _block(count: int) -> int:
    """The largest block that fits into a count that is no chain; 1 for a chain."""
    block = 1
    while count > _CHAIN and block * _BLOCK <= count:
        block *= _BLOCK
    return block
