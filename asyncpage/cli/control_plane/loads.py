"""The loads of `bench control-plane` that need no socket: rows that only decode, and requests that come and go.

Each builds an engine whose executor answers every step at once, so that what is left is the control plane.

INVARIANT: rates are taken while nothing is measured but the process; actors are timed in a second part of the run.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import median

from asyncpage.cli.control_plane.clients import ANSWER_TOKENS, OWN_TOKENS, SHARED_TOKENS, Clients, Coming, Lasting
from asyncpage.cli.control_plane.result import Result
from asyncpage.cli.control_plane.window import BenchFailed, Window, middle, until, window
from asyncpage.cli.loop import keep_what_is_loaded
from asyncpage.config import EngineConfig
from asyncpage.engine import AsyncEngine
from asyncpage.simulation.house_meter import ACTORS, NAMING, SETTLING, HouseMeter
from asyncpage.simulation.stand_in import stand_in

_BLOCK = 16
_FEWEST_STEPS = 128  # a grant holds for up to 64 steps, and what it costs must be in every window


async def steady(running: int, windows: int, window_tokens: int) -> Result:
    """`running` rows that decode, one token a step each."""
    steps = max(_FEWEST_STEPS, -(-window_tokens // running))
    tokens = 40 + 3 * windows * steps  # what the windows take, and as much again between looks
    async with new_engine(running, context=48 + tokens) as engine:
        clients = Lasting(engine)
        clients.start(running, tokens)
        await until(lambda: engine.house.scheduler.stats()["running"] == running or bool(clients.broken))
        return await measured(engine, "steady", running, windows, steps * running, clients)


async def churn(running: int, windows: int, window_tokens: int) -> Result:
    """`running` rows whose requests last `ANSWER_TOKENS` steps, with prefix hits, stop strings and a logprob."""
    context = SHARED_TOKENS + OWN_TOKENS + ANSWER_TOKENS + _BLOCK
    async with new_engine(running, context=context) as engine:
        clients = Coming(engine)
        clients.start(running + running // 16)  # some wait, so that a row is never empty for want of them
        # Some rows are empty whenever one looks: it is under way once everybody has been answered twice.
        await until(lambda: clients.finished >= 2 * running or bool(clients.broken))
        result = await measured(engine, "churn", running, windows, window_tokens, clients)
        clients.stop()
    return result


async def measured(
    engine: AsyncEngine, load: str, running: int, windows: int, window_tokens: int, clients: Clients | None
) -> Result:
    """Rates of `windows` windows, then the time of each actor from as many more. Errors: `BenchFailed`."""
    keep_what_is_loaded()  # as `serve` does
    plain = [await window(engine, window_tokens) for _ in range(windows)]
    metered: list[tuple[Window, HouseMeter]] = []
    for _ in range(windows):
        with HouseMeter() as meter:
            metered.append((await window(engine, window_tokens), meter))
    if clients is not None and clients.broken:
        raise BenchFailed(f"{load}: {clients.broken} requests failed, the first: {clients.first_failure}")
    return _result(load, running, plain, metered)


def _result(load: str, running: int, plain: list[Window], metered: Sequence[tuple[Window, HouseMeter]]) -> Result:
    # The meter reads a clock that goes on while others have the core (the one that does not costs a microsecond a
    # look), so its numbers are brought to the part of the time that was this process's.
    each = {
        name: median(meter.ns[name] / 1000 / seen.steps * seen.cpu_us / seen.wall_us for seen, meter in metered)
        for name in (*ACTORS, NAMING)
    }
    return Result(
        load=load,
        running=running,
        tokens_per_s=middle(plain, lambda seen: 1e6 * seen.tokens / seen.cpu_us),
        wall_tokens_per_s=middle(plain, lambda seen: 1e6 * seen.tokens / seen.wall_us),
        step_us=middle(plain, lambda seen: seen.cpu_us / seen.steps),
        step_tokens=middle(plain, lambda seen: seen.tokens / seen.steps),
        actors_us=each,
        settle_us=sum(each[name] for name in SETTLING),
    )


@asynccontextmanager
async def new_engine(running: int, context: int) -> AsyncIterator[AsyncEngine]:
    """An engine with room for `running` requests of `context` tokens, and as many again."""
    blocks = 2 * running * -(-context // _BLOCK)
    config = EngineConfig(
        model="none",
        max_model_len=context,
        max_num_seqs=running,
        max_num_batched_tokens=max(8192, 2 * running),
        max_queue=2 * running,
        num_kv_blocks=blocks,
        block_size=_BLOCK,
        seed=0,
    )
    engine = await AsyncEngine.start(config, stand_in=stand_in(config))
    try:
        yield engine
    finally:
        await engine.stop()
        gc.unfreeze()
