"""Time as a value given at birth, so that a test can hold it still.

`SystemClock` is the real thing; `asyncpage.testing.clock.FakeClock` moves only when told to.
No other module reads the time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A pending call that can be taken back."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Where an actor gets its time from."""

    def now(self) -> float:
        """Seconds on a monotone clock; only differences mean anything."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, for what people read."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` on the calling actor's loop after `delay_s` seconds, unless cancelled first."""
        ...


class SystemClock:
    """The machine's clock and the running loop's timers."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def busy(self) -> float:
        """Seconds of processor time of this thread, for measuring work on a machine that does other work too."""
        return time.thread_time()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, callback)
