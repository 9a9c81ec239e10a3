"""Automata of decimal numbers: those of a range, and those that are multiples of another.

`schema_numbers` combines them. A range is exact to `decimals` places after the point: its bounds are rounded inwards
to that many.

INVARIANT: every text is a number of JSON without an exponent, and lies within the range; it has no leading zero, no
sign before zero, and at most `decimals` places.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from math import gcd, lcm

from asyncpage.grammar.charset import CharSet, charset
from asyncpage.grammar.dfa import either, explore, minimal
from asyncpage.grammar.nfa import NOTHING, Nfa, nfa
from asyncpage.grammar.refusal import too_large
from asyncpage.records import record

MAX_MULTIPLE = 2_000  # remainders that are kept apart, with every digit that has been written

_MINUS = CharSet(((0x2D, 0x2D),))
_POINT = CharSet(((0x2E, 0x2E),))
_EXACT = Context(prec=2_000)


def scaled(number: Decimal, decimals: int, *, is_low: bool, is_outside: bool) -> int:
    """A bound in units of the last place: the first number of that many places that is inside."""
    exact = number.scaleb(decimals, _EXACT)
    whole = int(exact.to_integral_value(ROUND_CEILING if is_low else ROUND_FLOOR, _EXACT))
    if is_outside and whole == exact:
        whole += 1 if is_low else -1
    return whole


def within(low: int, high: int, decimals: int) -> Nfa:
    """The numbers from `low` to `high`, both in units of the last of `decimals` places."""
    parts = [_Magnitudes(max(low, 0), high, decimals).automaton()] if high >= 0 else []
    if low < 0:
        below = _Magnitudes(max(-high, 1), -low, decimals).automaton()
        rows = [[(chars, target + 1) for chars, target in row] for row in below.moves]
        parts.append(nfa([[(_MINUS, 1)], *rows], [False, *below.accepting]))
    return minimal(either(parts)) if parts else NOTHING


class _Magnitudes:
    """Numbers without a sign, from `low` to `high`.

    A place is what the digits so far leave open: for each count of digits that may follow, whether all numbers that
    begin like this are inside, none are, or some; only where it is some do the digits themselves matter.
    """

    def __init__(self, low: int, high: int, decimals: int) -> None:
        self._low = low
        self._high = high
        self._decimals = decimals
        self._unit = 10**decimals
        self._most_digits = len(str(max(high, 0) // self._unit))
        self._prefixes: dict[_Place, int] = {}  # digits that lead to each place

    def automaton(self) -> Nfa:
        return explore(None, self._ways, self._accepts)

    def _ways(self, place: _Place | None) -> list[tuple[CharSet, _Place | None]]:
        """Digits with one target are one way."""
        if place is None:
            return self._grouped({digit: self._whole(digit) for digit in range(10)})
        prefix = self._prefixes[place]
        if place.is_whole:
            ways = []
            if len(place.inside) > 1:
                ways = self._grouped({digit: self._whole(prefix * 10 + digit) for digit in range(10)})
            if self._decimals and (behind := self._part(prefix, 0, is_first=True)) is not None:
                ways.append((_POINT, behind))
            return ways
        if place.places == self._decimals:
            return []
        return self._grouped({digit: self._part(prefix * 10 + digit, place.places + 1) for digit in range(10)})

    def _grouped(self, targets: dict[int, _Place | None]) -> list[tuple[CharSet, _Place | None]]:
        digits: dict[_Place, list[int]] = {}
        for digit, target in targets.items():
            if target is not None:
                digits.setdefault(target, []).append(digit)
        return [(charset((0x30 + digit, 0x30 + digit) for digit in group), target) for target, group in digits.items()]

    def _accepts(self, place: _Place | None) -> bool:
        if place is None or place.is_first:
            return False
        size: int = 10 ** (self._decimals - place.places)
        return self._low <= self._prefixes[place] * size <= self._high

    def _whole(self, prefix: int) -> _Place | None:
        """After digits before the point; None where nothing is inside."""
        more = 0 if prefix == 0 else self._most_digits - len(str(prefix))
        inside = tuple(self._inside(prefix, 10**count * self._unit) for count in range(more + 1))
        if all(one is False for one in inside):
            return None
        return self._known(_Place(inside, prefix if None in inside else -1, is_whole=True), prefix)

    def _part(self, prefix: int, places: int, *, is_first: bool = False) -> _Place | None:
        """After digits behind the point, or right behind it, where one must follow."""
        inside = self._inside(prefix, 10 ** (self._decimals - places))
        if inside is False:
            return None
        return self._known(_Place((inside,), prefix if inside is None else -1, places, is_first=is_first), prefix)

    def _inside(self, prefix: int, size: int) -> bool | None:
        """Whether all of the `size` numbers that begin like this are inside; None for some of them."""
        first, last = prefix * size, (prefix + 1) * size - 1
        if self._low <= first and last <= self._high:
            return True
        return False if last < self._low or self._high < first else None

    def _known(self, place: _Place, prefix: int) -> _Place:
        self._prefixes.setdefault(place, prefix)
        return place


@record(frozen=True, slots=True)
class _Place:
    """`prefix`: the digits so far, -1 where they do not matter. `is_first`: right behind the point."""

    inside: tuple[bool | None, ...]
    prefix: int
    places: int = 0
    is_whole: bool = False
    is_first: bool = False


def multiples(step: int, decimals: int) -> Nfa:
    """Numbers that are multiples of `step` units of the last of `decimals` places. Errors: 400 past `MAX_MULTIPLE`."""
    if step > MAX_MULTIPLE:
        raise too_large(f"multiples of more than {MAX_MULTIPLE} units of their last place are not supported")
    digits = [(CharSet(((0x30 + digit, 0x30 + digit),)), digit) for digit in range(10)]

    def row(place: tuple[int, int]) -> list[tuple[CharSet, tuple[int, int]]]:
        rest, at = place  # `at`: places after the point, -1 before it, -2 before everything
        if at == decimals and decimals:
            return []
        ways = [(char, ((rest * 10 + digit) % step, at + (at >= 0) + (at == -2))) for char, digit in digits]
        if at == -2:
            ways.append((_MINUS, (0, -1)))
        if at == -1 and decimals:
            ways.append((_POINT, (rest, 0)))
        return ways

    def accepts(place: tuple[int, int]) -> bool:
        rest, at = place
        return at != -2 and rest * 10 ** (decimals - max(at, 0)) % step == 0

    return explore((0, -2), row, accepts)


def common_multiple(left: Fraction, right: Fraction) -> Fraction:
    """The smallest number that is a multiple of both."""
    return Fraction(lcm(left.numerator, right.numerator), gcd(left.denominator, right.denominator))
