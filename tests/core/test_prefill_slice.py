"""The slice of prompts beside rows that decode: it comes to the size whose steps take what they may, never to none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpage.core.prefill_slice import PrefillSlice, next_slice

LEAST, MOST = 16, 512
slices = st.floats(LEAST, MOST)
prefills = st.integers(1, MOST)
times = st.integers(1, 10_000_000)
aims = st.floats(1_000, 1_000_000)


@given(slices, prefills, times, aims)
def test_it_stays_within_its_bounds_and_changes_at_most_by_half_or_double(
    now: float, prefill: int, step_us: int, aim_us: float
) -> None:
    after = next_slice(now, prefill, step_us, aim_us=aim_us, least=LEAST, most=MOST)
    assert LEAST <= after <= MOST
    assert after <= 2 * now
    assert after >= min(now, max(LEAST, now / 2))
    assert (after >= now) if step_us <= aim_us else (after <= now)


@given(slices, prefills, times, times, aims)
def test_a_longer_step_never_makes_it_greater(now: float, prefill: int, one: int, other: int, aim_us: float) -> None:
    short, long = sorted((one, other))
    after_short = next_slice(now, prefill, short, aim_us=aim_us, least=LEAST, most=MOST)
    assert after_short >= next_slice(now, prefill, long, aim_us=aim_us, least=LEAST, most=MOST)


@given(slices, prefills, times, aims, aims)
def test_a_greater_target_never_makes_it_smaller(
    now: float, prefill: int, step_us: int, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    after_low = next_slice(now, prefill, step_us, aim_us=low, least=LEAST, most=MOST)
    assert after_low <= next_slice(now, prefill, step_us, aim_us=high, least=LEAST, most=MOST)


@given(fixed_us=st.integers(0, 50_000), token_us=st.integers(50, 3_000), begin=st.integers(0, 5))
def test_it_comes_to_the_size_whose_steps_take_what_they_may(fixed_us: int, token_us: int, begin: int) -> None:
    """Steps of a fixed part and a part a token, whose sizes are known by hand."""
    target_us = 64_000  # of which the aim is 48,000
    chosen = PrefillSlice(target_us, LEAST, MOST)
    for _ in range(begin):  # it begins somewhere on the way down
        chosen.learn(1, chosen.tokens, 1_000_000)
    for _ in range(200):
        chosen.learn(8, chosen.tokens, fixed_us + token_us * chosen.tokens)
    best = min(MOST, max(LEAST, (48_000 - fixed_us) / token_us))
    assert chosen.tokens == pytest.approx(best, rel=0.1, abs=2)
    if best > LEAST:
        assert fixed_us + token_us * chosen.tokens <= target_us


def test_steps_without_rows_that_decode_tell_how_fast_the_machine_is_until_others_do() -> None:
    chosen = PrefillSlice(80_000, LEAST, MOST)
    assert chosen.tokens == MOST
    chosen.learn(0, 512, 512_000)
    assert chosen.tokens == 60  # a token takes a millisecond, and three quarters of 80 are aimed at
    chosen.learn(1, 60, 60_000)
    chosen.learn(0, 512, 5_120_000)
    assert chosen.tokens == 60


def test_what_says_nothing_changes_nothing() -> None:
    chosen = PrefillSlice(80_000, LEAST, MOST)
    chosen.learn(8, 0, 500_000)  # no prompt in it
    chosen.learn(8, 100, 0)  # nobody measured
    assert chosen.tokens == MOST


def test_a_disturbed_step_is_forgotten_in_a_few() -> None:
    chosen = PrefillSlice(64_000, LEAST, MOST)
    for _ in range(50):
        chosen.learn(8, chosen.tokens, 20_000 + 500 * chosen.tokens)
    before = chosen.tokens
    chosen.learn(8, before, 900_000)
    assert chosen.tokens == before // 2
    for _ in range(8):
        chosen.learn(8, chosen.tokens, 20_000 + 500 * chosen.tokens)
    assert chosen.tokens >= 0.95 * before


def test_a_budget_smaller_than_a_block_is_all_there_is() -> None:
    chosen = PrefillSlice(64_000, 16, 8)
    chosen.learn(3, 8, 10_000_000)
    assert chosen.tokens == 8
