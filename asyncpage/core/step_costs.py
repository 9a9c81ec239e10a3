"""What steps of so many tokens took lately, measured: the cost side of how many drafts are worth trying.

`draft_length` tells it of each step that is back and asks what others would take. Sizes up to 16 tokens stand for
themselves, greater ones share a quarter of an octave; a size that was never seen is read off its neighbours. Of each
size the median of its last steps stands, and where a greater size seems cheaper, one outlier among few steps, their
mean does (isotonic regression: pool adjacent violators, Ayer et al. 1955).

A size that no step has any more, as drafts make them greater, is to be seen again now and then: its first may have
been slow ones.

INVARIANT: a step of more tokens is never told cheaper than one of fewer.
"""

from __future__ import annotations

from bisect import insort
from collections import deque

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

_EXACT = 16  # sizes that are kept apart: what a step of one row and its drafts has
_REMEMBERED = 9  # steps of a size; their median stands, so that a neighbour on the machine does not decide


class StepCosts:
    """Microseconds by tokens."""

    def __init__(self) -> None:
        self._sizes: list[int] = []  # ascending, the seen ones
        self._recent: dict[int, deque[int]] = {}
        self._medians: dict[int, int] = {}
        self._curve: tuple[Float64, Float64] | None = None
        self._steps = 0
        self._last: dict[int, int] = {}  # the step of each size that was seen last
        self._asked: dict[int, tuple[int, int]] = {}  # how often each size was asked for, and at which step last

    def learn(self, tokens: int, step_us: int) -> None:
        """A step of so many tokens took that long."""
        size = _size(tokens)
        self._steps += 1
        self._last[size] = self._steps
        if size not in self._recent:
            insort(self._sizes, size)
            self._recent[size] = deque(maxlen=_REMEMBERED)
        recent = self._recent[size]
        recent.append(step_us)
        median = sorted(recent)[len(recent) // 2]
        if self._medians.get(size) != median:
            self._medians[size] = median
            self._curve = None

    def is_due(self, tokens: int) -> bool:
        """Whether a step of about so many tokens was not seen for long, the sooner the fewer there were."""
        size = _size(tokens)
        if size not in self._recent:
            return True
        return self._steps - self._last[size] > _pause(len(self._recent[size]))

    def ask(self, tokens: int) -> bool:
        """Whether to make a step of about so many tokens, to see what it takes: it is due and was not asked for lately.

        What was asked for may never come, as a row has no drafts to make a step greater: then it is asked for seldom.
        """
        size = _size(tokens)
        times, at = self._asked.get(size, (0, 0))
        if not self.is_due(tokens) or (times and self._steps - at <= _pause(times)):
            return False
        self._asked[size] = min(times + 1, _REMEMBERED), self._steps
        return True

    def step_us(self, tokens: Float64) -> Float64:
        """What steps of so many tokens [N] take; greater than all that were seen counts as the greatest of them."""
        if self._curve is None:
            self._curve = np.array(self._sizes, dtype=np.float64), self._levels()
        return np.interp(tokens, *self._curve)

    def _levels(self) -> Float64:
        """The medians by ascending size, made to ascend."""
        pools: list[tuple[float, int, int]] = []  # mean, steps, sizes
        for size in self._sizes:
            mean, steps, sizes = float(self._medians[size]), len(self._recent[size]), 1
            while pools and pools[-1][0] >= mean:
                other, before, merged = pools.pop()
                mean = (mean * steps + other * before) / (steps + before)
                steps, sizes = steps + before, sizes + merged
            pools.append((mean, steps, sizes))
        return np.array([mean for mean, _, sizes in pools for _ in range(sizes)])


def _pause(times: int) -> int:
    """Steps until a size is to be seen again that was seen, or asked for, so many times."""
    return 4 * times**2


def _size(tokens: int) -> int:
    """The size that a step of so many tokens counts as."""
    if tokens <= _EXACT:
        return tokens
    octave = 1 << (tokens.bit_length() - 1)
    quarter = octave // 4
    return octave + quarter * ((tokens - octave) // quarter)
