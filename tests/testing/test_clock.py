"""The fake clock."""

from __future__ import annotations

import pytest

from asyncpage.testing.clock import FakeClock


def test_time_stands_still_until_it_is_moved() -> None:
    clock = FakeClock(now=10.0, wall=500.0)
    assert (clock.now(), clock.wall()) == (10.0, 500.0)
    clock.advance(2.5)
    assert (clock.now(), clock.wall()) == (12.5, 502.5)


def test_timers_fire_in_the_order_of_their_times_and_ties_in_the_order_they_were_set() -> None:
    clock, fired = FakeClock(now=0.0), []
    for delay, name in ((3.0, "c"), (1.0, "a"), (2.0, "b1"), (2.0, "b2"), (9.0, "never")):
        clock.call_later(delay, lambda name=name: fired.append((clock.now(), name)))  # type: ignore[misc]
    clock.advance(3.0)
    assert fired == [(1.0, "a"), (2.0, "b1"), (2.0, "b2"), (3.0, "c")]
    assert clock.armed() == (6.0,)


def test_a_timer_that_a_timer_sets_fires_in_the_same_advance_if_it_falls_due() -> None:
    clock, fired = FakeClock(now=0.0), []

    def tick() -> None:
        fired.append(clock.now())
        clock.call_later(1.0, tick)

    clock.call_later(1.0, tick)
    clock.advance(3.5)
    assert fired == [1.0, 2.0, 3.0]


def test_a_cancelled_timer_does_not_fire_and_is_not_armed() -> None:
    clock, fired = FakeClock(), []
    timer = clock.call_later(1.0, lambda: fired.append(1))
    timer.cancel()
    assert clock.armed() == ()
    clock.advance(5.0)
    assert fired == []


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        FakeClock().advance(-1.0)
