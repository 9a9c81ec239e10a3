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

from asyncpage.grammar.charset import CharSet
from asyncpage.grammar.dfa import determined, either, explore
from asyncpage.grammar.nfa import Nfa
from asyncpage.grammar.refusal import too_large

MAX_MULTIPLE = 2_000  # remainders that are kept apart, with every digit that has been written

_MINUS = CharSet(((0x2D, 0x2D),))
_POINT = CharSet(((0x2E, 0x2E),))
_EXACT = Context(prec=2_000)

Place = tuple[int, bool, bool, bool]  # digits so far, on the lower bound, on the upper, right after the point
_START = (0, True, True, False)


def scaled(number: Decimal, decimals: int, *, is_low: bool, is_outside: bool) -> int:
    """A bound in units of the last place: the first number of that many places that is inside."""
    exact = number.scaleb(decimals, _EXACT)
    whole = int(exact.to_integral_value(ROUND_CEILING if is_low else ROUND_FLOOR, _EXACT))
    if is_outside and whole == exact:
        whole += 1 if is_low else -1
    return whole


def within(low: int, high: int, decimals: int) -> Nfa:
    """The numbers from `low` to `high`, both in units of the last of `decimals` places."""
    parts = []
    for sign, first, last in ((None, max(low, 0), high), (_MINUS, max(-high, 1), -low)):
        for length in range(1, len(str(max(last, 0) // 10**decimals)) + 1):
            least = 10 ** (length - 1 + decimals) if length > 1 else 0
            bottom, top = max(first, least), min(last, 10 ** (length + decimals) - 1)
            if bottom <= top:
                width = length + decimals
                parts.append(_of_length(sign, f"{bottom:0{width}}", f"{top:0{width}}", length))
    made = either(parts) if parts else Nfa(((),), (False,))
    return determined(made) or made


def _of_length(sign: CharSet | None, low: str, high: str, length: int) -> Nfa:
    """Numbers with `length` digits before the point, from `low` to `high`, digits without the point."""

    def row(place: Place | None) -> list[tuple[CharSet, Place | None]]:
        if place is None:  # before the sign
            return [(sign, _START)] if sign else []
        at, on_low, on_high, is_after_point = place
        if at == len(low):
            return []
        if at == length and not is_after_point:
            return [(_POINT, (at, on_low, on_high, True))]
        least, most = int(low[at]) if on_low else 0, int(high[at]) if on_high else 9
        ways: dict[tuple[bool, bool], list[int]] = {}
        for digit in range(least, most + 1):
            ways.setdefault((on_low and digit == least, on_high and digit == most), []).append(digit)
        return [
            (CharSet(((0x30 + digits[0], 0x30 + digits[-1]),)), (at + 1, *bounds, False))
            for bounds, digits in ways.items()
        ]

    def accepts(place: Place | None) -> bool:
        if place is None:
            return False
        at, on_low, _, is_after_point = place
        return at >= length and not is_after_point and not (on_low and low[at:].strip("0"))

    return explore(_START if sign is None else None, row, accepts)


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
