"""A loop whose time is virtual: it never sleeps, it goes to the next timer at once.

A simulation runs the engine on it, unchanged; `VirtualClock` is the clock that its actors are given.

INVARIANT: nothing outside the program moves this time or wakes this loop, so the same program takes the same turns.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable
from typing import Any

from asyncpage.clock import Timer
from asyncpage.errors import Stalled

_WALL_S = 1_700_000_000.0  # what a virtual calendar begins with


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs callbacks in asyncio's own order. Files, sockets and other threads cannot wake it."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_Jump(self._pass))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def run_in_executor(  # type: ignore[override]  # asyncio types it by the function's own arguments
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run it at once, here: a thread would need real time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _pass(self, wait_s: float) -> None:
        now_s = self._now_s
        # The next float at least, or a wait that is too short to be added would never be over.
        self._now_s = now_s = max(now_s + wait_s, math.nextafter(now_s, math.inf))
        # asyncio runs timers that are due within this: below the distance of two floats, none ever would be.
        self._clock_resolution = max(1e-9, 4 * math.ulp(now_s))


class _Jump(selectors.SelectSelector):
    """What the loop would sleep in: passes the time instead."""

    def __init__(self, pass_time: Callable[[float], None]) -> None:
        super().__init__()
        self._pass_time = pass_time

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Errors: `Stalled` when there is no timer to go to."""
        if timeout is None:
            raise Stalled("the simulation waits for something that cannot come: nothing is ready and no timer is set")
        if timeout > 0:
            self._pass_time(timeout)
        return []


class VirtualClock:
    """The `Clock` of a `VirtualLoop`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._call_later = loop.call_later
        self.now = loop.time

    def wall(self) -> float:
        return _WALL_S + self.now()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._call_later(delay_s, callback)
