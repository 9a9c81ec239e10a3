"""A set of characters: sorted ranges of Unicode code points, surrogates left out.

Regular expressions and finite automata are over these; how a character is written as bytes is `spelling`'s matter.

INVARIANT: ranges are sorted, apart from one another, and hold no surrogate, so equal sets are equal values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from asyncpage.records import record

LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)

Range = tuple[int, int]


@record(frozen=True, slots=True)
class CharSet:
    """`ranges`: first and last code point of each; make one with `charset` unless they keep the invariant already."""

    ranges: tuple[Range, ...]

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, point: int) -> bool:
        return any(low <= point <= high for low, high in self.ranges)

    def __or__(self, other: CharSet) -> CharSet:
        return charset((*self.ranges, *other.ranges))

    def __and__(self, other: CharSet) -> CharSet:
        return CharSet(tuple(_common(self.ranges, other.ranges)))

    def __sub__(self, other: CharSet) -> CharSet:
        return self & ~other

    def __invert__(self) -> CharSet:
        return CharSet(tuple(_common(ANY.ranges, tuple(_gaps(self.ranges)))))


def charset(ranges: Iterable[Range]) -> CharSet:
    """The set of all code points of these ranges, in any order and overlapping as they may."""
    joined: list[Range] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return CharSet(tuple(_common(ANY.ranges, tuple(joined))))


def one_of(text: str) -> CharSet:
    """The characters of `text`."""
    return charset((ord(char), ord(char)) for char in text)


def _common(left: tuple[Range, ...], right: tuple[Range, ...]) -> Iterator[Range]:
    i = j = 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if low <= high:
            yield low, high
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1


def _gaps(ranges: tuple[Range, ...]) -> Iterator[Range]:
    at = 0
    for low, high in ranges:
        if at < low:
            yield at, low - 1
        at = high + 1
    if at <= LAST:
        yield at, LAST


ANY = CharSet(((0, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, LAST)))
EMPTY = CharSet(())
