"""Runs the workloads against this engine and its peers in turn, and gathers what was measured.

Each run starts every server anew, one at a time, and turns the order round, so that whatever else changes on the
machine meets all of them alike.

INVARIANT: only one server runs at a time; a run that others disturbed is tried again, and kept as disturbed at last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from asyncpage.cli.peers.contention import Contention
from asyncpage.cli.peers.engine import SERVED_NAME
from asyncpage.cli.peers.server_process import Server, start
from asyncpage.cli.peers.verdict import Measured
from asyncpage.cli.peers.workload import ExactText, Workload, prompts, run

_PAUSE_S = 2.0  # before a disturbed workload is tried again
_WARM = Workload("warm-up", 1, 1, 24, 4)


@dataclass(frozen=True, slots=True)
class Contestant:
    """`command`: what starts its server at `url`."""

    name: str
    title: str
    command: tuple[str, ...]
    url: str
    start_limit_s: float


@dataclass(frozen=True, slots=True)
class Rules:
    """`most_other`: cores that others may use in a run that counts. `retries`: of a workload that was disturbed."""

    workloads: tuple[Workload, ...]
    runs: int
    most_other: float
    retries: int
    nice: int
    logs: Path


async def compare(
    contestants: Sequence[Contestant],
    rules: Rules,
    text: ExactText,
    now: Callable[[], float],
    say: Callable[[str], None],
) -> list[Measured]:
    """Errors: `ServerFailed`, `WorkloadFailed`."""
    measured: list[Measured] = []
    for one in contestants:  # what is built or read at a first start is no part of the others
        say(f"first start of {one.title}, not measured")
        async with _started(one, rules, now) as server:
            await _work(server, one, _WARM, f"first {one.name}", text, now)
    for number in range(1, rules.runs + 1):
        for one in contestants if number % 2 else reversed(contestants):
            say(f"run {number} of {rules.runs}, {one.title}")
            watched = Contention(now)
            async with _started(one, rules, now) as server:
                others = watched.other_cores(server.pid)
                measured.append(Measured(one.name, number, "start", server.first_token_s, others))
                await _work(server, one, _WARM, f"warm {number} {one.name}", text, now)
                for workload in rules.workloads:
                    measured += await _measure(server, one, workload, rules, number, text, now, say)
                measured.append(Measured(one.name, number, "rss", server.peak_bytes() / 1e9, 0.0))
    return measured


def _started(one: Contestant, rules: Rules, now: Callable[[], float]) -> AbstractAsyncContextManager[Server]:
    log = rules.logs / f"{one.name}.log"
    return start(one.command, one.url, SERVED_NAME, log, now, limit_s=one.start_limit_s, nice=rules.nice)


async def _work(
    server: Server, one: Contestant, workload: Workload, seed: str, text: ExactText, now: Callable[[], float]
) -> Mapping[str, float]:
    return await run(workload, server.url, SERVED_NAME, prompts(workload, text, seed), now)


async def _measure(
    server: Server,
    one: Contestant,
    workload: Workload,
    rules: Rules,
    number: int,
    text: ExactText,
    now: Callable[[], float],
    say: Callable[[str], None],
) -> list[Measured]:
    for attempt in range(rules.retries + 1):
        # The same prompts for every server, and for none of them twice.
        drawn = prompts(workload, text, f"run {number} attempt {attempt}")
        watched = Contention(now, server.pid)
        found = await run(workload, server.url, SERVED_NAME, drawn, now)
        others = watched.other_cores(server.pid)
        told = ", ".join(f"{name} {value:.1f}" for name, value in found.items())
        is_last = others <= rules.most_other or attempt == rules.retries
        say(f"  {one.title}: {told}; others used {others:.2f} cores{'' if is_last else ', once more'}")
        if is_last:
            return [Measured(one.name, number, row, value, others) for row, value in found.items()]
        await asyncio.sleep(_PAUSE_S)
    raise AssertionError("the last attempt returns")
