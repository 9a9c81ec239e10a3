"""A clock under the test's control: time stands still until `advance`.

Given to actors in place of `asyncpage.clock.SystemClock`; it sends to nobody.

INVARIANT: timers fire in the order of their times, equal times in the order they were set, each with `now()` at its
own time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable


class FakeTimer:
    """A pending call on a `FakeClock`."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """Time that moves only when told to. Timers run inside `advance`, in the caller's thread."""

    def __init__(self, now: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._now = now
        self._wall_offset = wall - now
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._set_timers = 0

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self._wall_offset

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(callback)
        self._set_timers += 1
        heapq.heappush(self._timers, (self._now + max(0.0, delay_s), self._set_timers, timer))
        return timer

    def advance(self, delay_s: float) -> None:
        """Move on by `delay_s` seconds and fire what falls due, also what the fired calls set within that time."""
        if delay_s < 0:
            raise ValueError(f"time does not run backwards: advance({delay_s})")
        until = self._now + delay_s
        while self._timers and self._timers[0][0] <= until:
            due, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                self._now = due
                callback, timer.callback = timer.callback, None
                callback()
        self._now = until

    def armed(self) -> tuple[float, ...]:
        """Seconds until each timer that would fire, soonest first; empty when nothing is armed."""
        return tuple(due - self._now for due, _, timer in sorted(self._timers) if timer.callback is not None)
