"""Which tokens may end a running request: one look at a whole step tells that nobody is over.

INVARIANT: a token that would end any request that runs is never missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from asyncpage.messages import Int32

Flags = NDArray[np.bool_]


class EndTokens:
    """Counts, for each of `vocab_size` tokens, the running requests that it would end."""

    def __init__(self, vocab_size: int) -> None:
        self._requests = Counter[int]()
        self._may_end: Flags = np.zeros(vocab_size, dtype=np.bool_)

    def add(self, tokens: Iterable[int]) -> None:
        """A request runs that each of these would end."""
        for token in tokens:
            self._requests[token] += 1
            if token < len(self._may_end):
                self._may_end[token] = True

    def remove(self, tokens: Iterable[int]) -> None:
        """It runs no more."""
        for token in tokens:
            self._requests[token] -= 1
            if not self._requests[token]:
                del self._requests[token]
                if token < len(self._may_end):
                    self._may_end[token] = False

    def among(self, tokens: Int32) -> Flags:
        """Which of `tokens` would end somebody, though not always the one who got it."""
        return self._may_end.take(tokens)

    def is_any_among(self, tokens: Int32) -> bool:
        """Whether one of `tokens` would end somebody."""
        return bool(self._requests) and is_any(self.among(tokens))


def is_any(flags: Flags) -> bool:
    """As `any`, five times as fast for some hundred flags."""
    return b"\1" in flags.tobytes()
