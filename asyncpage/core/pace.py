"""How fast requests finish, measured, so that a refused client is told when to come back."""

from __future__ import annotations

SMOOTHING = 0.1  # weight of the newest interval: about the last twenty requests count
LONGEST_S = 60.0


class Pace:
    """A moving average of the seconds between two finished requests."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._interval_s: float | None = None

    def finished(self, now_s: float) -> None:
        """A request has finished at this moment of the clock."""
        if self._last_s is not None:
            interval_s = now_s - self._last_s
            before_s = interval_s if self._interval_s is None else self._interval_s
            self._interval_s = before_s + SMOOTHING * (interval_s - before_s)
        self._last_s = now_s

    def retry_after_s(self, waiting: int) -> float:
        """Seconds until `waiting` requests have probably gone, between 1 and 60; 1 while nothing was measured."""
        return min(LONGEST_S, max(1.0, waiting * (self._interval_s or 0.0)))
