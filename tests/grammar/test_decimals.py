"""Ranges and multiples of decimal numbers against arithmetic."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.errors import RequestError
from asyncpage.grammar.decimals import common_multiple, multiples, scaled, within


def texts(decimals: int, most: int) -> list[str]:
    """Every number up to `most` in its plain spelling, with as many places as there may be and fewer."""
    found = []
    for places in range(decimals + 1):
        for units in range(-most * 10**places, most * 10**places + 1):
            whole, part = divmod(abs(units), 10**places)
            sign = "-" if units < 0 else ""
            found.append(f"{sign}{whole}" + (f".{part:0{places}}" if places else ""))
    return found


WHOLE = texts(0, 1_200)
TENTHS = texts(1, 130)


@settings(max_examples=100, deadline=None)
@given(st.integers(-1_300, 1_300), st.integers(-1_300, 1_300))
def test_whole_numbers_of_a_range_match_and_no_others(low: int, high: int) -> None:
    automaton = within(low, high, 0)
    assert {text for text in WHOLE if automaton.matches(text)} == {t for t in WHOLE if low <= int(t) <= high}


@settings(max_examples=100, deadline=None)
@given(st.integers(-1_400, 1_400), st.integers(-1_400, 1_400))
def test_tenths_of_a_range_match_and_no_others(low: int, high: int) -> None:
    automaton = within(low, high, 1)
    found = {text for text in TENTHS if automaton.matches(text)}
    assert found == {text for text in TENTHS if low <= Decimal(text) * 10 <= high}


@settings(max_examples=200, deadline=None)
@given(st.integers(-(10**20), 10**20), st.integers(0, 10**20), st.integers(0, 6), st.data())
def test_bounds_and_their_neighbours_are_told_apart(low: int, span: int, decimals: int, data: st.DataObject) -> None:
    high = low + span
    automaton = within(low, high, decimals)
    inner = data.draw(st.integers(low, high))
    for units in (low - 1, low, low + 1, high - 1, high, high + 1, inner, low * 10, high * 10, high // 10, -low):
        text = str(Decimal(units).scaleb(-decimals)) if units else "0"
        if "E" not in text:
            assert automaton.matches(text) == (low <= units <= high)
    for text in ("", "-", "-0", "00", "01", "-01", ".5", "5.", "+5", "1e5", "0" * 30):
        assert not automaton.matches(text)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 10, 25, 60, 128, 1_000])
def test_multiples_of_whole_numbers_match(step: int) -> None:
    automaton = multiples(step, 0)
    for value in range(-2_100, 2_101):
        assert automaton.matches(str(value)) == (value % step == 0)


@pytest.mark.parametrize(("step", "decimals"), [(5, 1), (25, 2), (125, 3), (15, 1)])
def test_multiples_of_fractions_match_with_fewer_places_too(step: int, decimals: int) -> None:
    automaton = multiples(step, decimals)
    for text in texts(min(decimals, 2), 12):
        assert automaton.matches(text) == (Decimal(text) * 10**decimals % step == 0)


def test_a_step_too_large_to_count_with_is_refused() -> None:
    with pytest.raises(RequestError, match="2000"):
        multiples(2_001, 0)


@given(st.fractions(min_value=Fraction(1, 64), max_value=50), st.fractions(min_value=Fraction(1, 64), max_value=50))
def test_the_common_multiple_is_the_smallest(left: Fraction, right: Fraction) -> None:
    both = common_multiple(left, right)
    assert (both / left).denominator == (both / right).denominator == 1
    for part in range(2, 40):
        assert (both / part / left).denominator != 1 or (both / part / right).denominator != 1


@given(st.decimals(-1_000, 1_000, places=4), st.integers(0, 5), st.booleans())
def test_bounds_are_rounded_inwards(bound: Decimal, decimals: int, is_outside: bool) -> None:
    low = scaled(bound, decimals, is_low=True, is_outside=is_outside)
    high = scaled(bound, decimals, is_low=False, is_outside=is_outside)
    unit = Decimal(1).scaleb(-decimals)
    assert bound < low * unit if is_outside else bound <= low * unit
    assert bound > high * unit if is_outside else bound >= high * unit
    assert (low - 1) * unit < bound or (is_outside and (low - 1) * unit == bound)
    assert (high + 1) * unit > bound or (is_outside and (high + 1) * unit == bound)
