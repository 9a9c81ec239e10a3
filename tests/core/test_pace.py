"""The measured pace of finished requests, against even intervals."""

import pytest

from asyncpage.core.pace import LONGEST_S, Pace


def test_nothing_measured_means_the_shortest_wait() -> None:
    pace = Pace()
    assert pace.retry_after_s(1000) == 1.0
    pace.finished(5.0)
    assert pace.retry_after_s(1000) == 1.0


def test_an_even_pace_makes_the_wait_the_queue_times_the_interval() -> None:
    pace = Pace()
    for i in range(50):
        pace.finished(0.25 * i)
    assert pace.retry_after_s(40) == pytest.approx(10.0)
    assert pace.retry_after_s(0) == 1.0
    assert pace.retry_after_s(10_000) == LONGEST_S


def test_a_new_pace_is_followed_within_some_twenty_requests() -> None:
    pace = Pace()
    now_s = 0.0
    for interval_s, count in ((0.1, 50), (1.0, 20)):
        for _ in range(count):
            now_s += interval_s
            pace.finished(now_s)
    # After k intervals of 1 s the old 0.1 s weighs 0.9 ** k.
    assert pace.retry_after_s(10) == pytest.approx(10 * (1.0 - 0.9 * 0.9**20))
