"""One simulation from beginning to end: the engine with a simulated executor, on a loop whose time is virtual.

`asyncpage simulate` calls it; the engine is the one that serves, built by `engine.py`.

INVARIANT: equal arguments give equal results, bit for bit, on every machine.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from asyncpage.config import EngineConfig
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.step_latency import StepLatency
from asyncpage.engine import AsyncEngine
from asyncpage.errors import ActorDied
from asyncpage.house import StandIn
from asyncpage.simulation.driver import Driver
from asyncpage.simulation.stand_in import stand_in as simulated
from asyncpage.simulation.tally import Summary
from asyncpage.simulation.trace import Trace
from asyncpage.simulation.virtual_loop import VirtualClock, VirtualLoop

AroundIndex = Callable[[PrefixIndex], PrefixIndex]

_ANY_ID = 2**31 - 1  # a trace's token ids come from any model's vocabulary


def no_progress(done: int, total: int | None) -> None:
    """For callers that show none."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the simulated executor runs on: its time for a step, and whether it has a clock of its own.

    `device`: with a name that begins with "cpu", one step is in flight at a time unless the settings say otherwise.
    """

    latency: StepLatency
    device: str = "simulated"

    def stand_in(self, config: EngineConfig, around_index: AroundIndex | None) -> StandIn:
        """The executor and text for an engine with these settings."""
        return simulated(config, self.latency, device=self.device, known_ids=_ANY_ID, around_index=around_index)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A simulation's summary, and the text of its first failure ("" when none failed)."""

    summary: Summary
    first_failure: str


def simulate(
    config: EngineConfig,
    machine: Machine,
    trace: Trace,
    *,
    most_open: int | None = None,
    on_progress: Callable[[int, int | None], None] = no_progress,
    around_index: AroundIndex | None = None,
) -> Outcome:
    """Play `trace` to an engine of these settings and return what its clients saw.

    `most_open`: requests under way at most; for a trace without times, twice the rows when None. `around_index`: see
    `StandIn`. Errors: `UsageError` for settings or a trace that cannot work; `ActorDied`.
    """
    if most_open is None and not trace.has_times:
        most_open = min(2, 1 + config.max_queue // config.max_num_seqs) * config.max_num_seqs
    if config.seed is None:
        config = replace(config, seed=0)
    with _rare_collections(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        clock = VirtualClock(loop)
        return runner.run(_play(config, machine, trace, clock, most_open, on_progress, around_index))


@contextmanager
def _rare_collections() -> Iterator[None]:
    """A prefix index is a large graph that lives long: looking through it for garbage takes a seventh of the time."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def _play(
    config: EngineConfig,
    machine: Machine,
    trace: Trace,
    clock: VirtualClock,
    most_open: int | None,
    on_progress: Callable[[int, int | None], None],
    around_index: AroundIndex | None,
) -> Outcome:
    deaths: list[str] = []
    stand_in = machine.stand_in(config, around_index)
    engine = await AsyncEngine.start(config, clock=clock, stand_in=stand_in, on_death=deaths.append)
    try:
        driver = Driver(engine, trace, clock, most_open=most_open, on_progress=on_progress)
        tally = await driver.run()
        if deaths:
            raise ActorDied(deaths[0])
        stats = await engine.ping(1.0)
    finally:
        await engine.stop()
    return Outcome(tally.summary(stats["scheduler"], stats["executor"]), tally.first_failure)
