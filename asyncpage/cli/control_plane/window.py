"""Looks at a running engine in windows: steps, tokens, and the time of this process's one core.

The loads of `bench control-plane` take them; the report shows their medians.

INVARIANT: tokens are counted where they are made; clients count their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from asyncpage.engine import AsyncEngine
from asyncpage.errors import AsyncpageError

_PATIENCE_S = 60.0
_LOOK_S = 0.002  # a look costs some microseconds, and this long of steps several hundred


class BenchFailed(AsyncpageError):
    """The engine did not do what it was asked, so its speed means nothing."""


@dataclass(frozen=True, slots=True)
class Window:
    """`cpu_us` is the time this process computed, `wall_us` what passed meanwhile."""

    steps: int
    tokens: int
    cpu_us: float
    wall_us: float


async def window(engine: AsyncEngine, tokens: int) -> Window:
    """The next `tokens` tokens that the engine makes, and however many more it made until it was looked at."""
    began = _look(engine)
    await until(lambda: engine.executor.stats()["tokens"] >= began[1] + tokens)
    steps, made, cpu_s, wall_s = (after - before for before, after in zip(began, _look(engine), strict=True))
    return Window(int(steps), int(made), 1e6 * cpu_s, 1e6 * wall_s)


async def until(is_true: Callable[[], bool]) -> None:
    """Wait while the engine works. Errors: `BenchFailed` when nothing comes of it."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while not is_true():
        if time.monotonic() > deadline_s:
            raise BenchFailed(f"the engine stands still, or is slower than any: nothing came in {_PATIENCE_S:g} s")
        await asyncio.sleep(_LOOK_S)


def middle(windows: list[Window], value: Callable[[Window], float]) -> float:
    """The median of a value over windows."""
    return median(map(value, windows))


def _look(engine: AsyncEngine) -> tuple[float, float, float, float]:
    stats = engine.executor.stats()
    return stats["steps"], stats["tokens"], time.process_time(), time.perf_counter()
