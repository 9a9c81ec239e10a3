"""Backoff before a restart."""

from __future__ import annotations

from asyncpage.core.restart import LONGEST_S, backoff_s


def test_the_first_restart_is_at_once_and_the_waits_double_up_to_a_limit() -> None:
    assert [backoff_s(losses) for losses in range(1, 9)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_the_wait_never_shrinks_and_never_passes_its_limit() -> None:
    waits = [backoff_s(losses) for losses in range(1, 5000)]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_S
