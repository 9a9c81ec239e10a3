"""A distribution of durations in bounded memory, however many are counted.

The driver of a simulation fills one for each latency; the report reads it.

INVARIANT: mean and maximum are exact; a percentile is within half a bin of a value that was counted.
"""

from __future__ import annotations

import math
from array import array

RATIO = 1.005
"""Of one bin's end to its beginning: a percentile is within 0.25 % of the value that stands there."""

_LOG_RATIO = math.log(RATIO)
_SMALLEST_S = 1e-7
_BINS = 1 + math.ceil(math.log(1e9 / _SMALLEST_S) / _LOG_RATIO)  # up to 30 years


class Distribution:
    """Durations in seconds, by bins that grow geometrically. Those below 0.1 us count as 0."""

    def __init__(self) -> None:
        self._bins = array("q", bytes(8 * _BINS))
        self.count = 0
        self._sum_s = 0.0
        self._most_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.count += 1
        self._sum_s += seconds
        if seconds > self._most_s:
            self._most_s = seconds
        self._bins[1 + int(math.log(seconds / _SMALLEST_S) / _LOG_RATIO) if seconds >= _SMALLEST_S else 0] += 1

    @property
    def mean_s(self) -> float:
        """0 when nothing was counted."""
        return self._sum_s / self.count if self.count else 0.0

    def percentile_s(self, percent: float) -> float:
        """The middle of the bin that `percent` of the durations do not exceed; 0 when nothing was counted."""
        rank = percent / 100 * self.count
        passed = 0
        for place, count in enumerate(self._bins):
            passed += count
            if count and passed >= rank:
                middle_s = _SMALLEST_S * RATIO ** (place - 0.5) if place else 0.0
                return min(middle_s, self._most_s)
        return 0.0
