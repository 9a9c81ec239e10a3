"""I0: what must be as before once a case is over.

`suite` takes a baseline when a server is up and holds the server to it after every case.

INVARIANT: /health is 200; the canary answers as on the first day; nothing runs, waits or holds a block; no traceback
and no forgotten task in the log; processes, descriptors, shared memory and memory as before; no unexpected answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.cases.client import COMPLETIONS, Client
from tests.cases.process_state import descriptors, memory_bytes, segments
from tests.cases.server import Server

IDLE_S = 2.0
MOST_GROWTH = 20 * 1024 * 1024
SIGNS = ("Traceback", "never retrieved", "never awaited", "ResourceWarning")
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_blocks_used")
CANARY = {
    "model": "$M", "prompt": "The canary sings", "max_tokens": 12, "temperature": 0, "ignore_eos": True,
    "return_token_ids": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Baseline:
    """A server at rest: API process first, executor second."""

    canary: str
    gauges: dict[str, float]
    descriptors: tuple[Counter[str], ...]
    memory: tuple[int, ...]
    log_at: int


async def rest(server: Server, client: Client, canary: str | None = None) -> Baseline:
    """How the server is now. `canary`: the first day's, to hold it to."""
    await client.close()
    await client.open()
    found = await sing(client) if canary is None else canary
    gauges = await client.gauges()
    await client.close()
    family = server.family()
    return Baseline(
        canary=found,
        gauges={name: gauges[name] for name in GAUGES},
        descriptors=tuple(Counter(descriptors(pid)) for pid in family),
        memory=tuple(memory_bytes(pid) for pid in family),
        log_at=server.log_size(),
    )


async def sing(client: Client) -> str:
    """The canary's answer without what is new every time; what the cache gave is no part of an answer."""
    answer = await client.post(COMPLETIONS, CANARY)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    del found["id"], found["created"], found["usage"]["prompt_tokens_details"]
    return json.dumps(found)


async def check(
    server: Server,
    client: Client,
    before: Baseline,
    slack: float,
    growth: int = MOST_GROWTH,
    signs: Sequence[str] = SIGNS,
) -> None:
    """Errors: `AssertionError` naming what is not as before. `slack` stretches the times on shared machines.

    `signs`: what the log must not hold.
    """
    await client.close()
    await client.open()
    try:
        health = await client.get("/health")
        assert health.status == 200, f"/health is {health.status}"

        async def idle() -> str:
            gauges = await client.gauges()
            left = {name: gauges[name] for name in GAUGES if gauges[name] > before.gauges[name]}
            return f"still busy: {left}" if left else ""

        await until(idle, IDLE_S * slack)
        assert await sing(client) == before.canary, "the canary sings another song"
        await until(idle, IDLE_S * slack)
    finally:
        await client.close()

    async def as_before() -> str:
        family = server.family()
        if len(family) != len(before.descriptors):
            return f"{len(family)} processes, {len(before.descriptors)} before"
        for pid, counted in zip(family, before.descriptors, strict=True):
            more = Counter(descriptors(pid)) - counted
            if more:
                return f"process {pid} has more descriptors: {dict(more)}"
            if segments(pid):
                return f"process {pid} has named shared memory: {segments(pid)}"
        return ""

    await until(as_before, IDLE_S * slack)
    for name, pid, was in zip(("API process", "executor"), server.family(), before.memory, strict=False):
        grown = memory_bytes(pid) - was
        assert grown <= growth, f"the {name} has grown by {grown >> 20} MiB"
    log = server.log(before.log_at)
    for sign in signs:
        assert sign not in log, f"the log has {sign!r}:\n{log[:4000]}"
    assert not client.complaints, "\n".join(client.complaints)


async def until(wrong: Callable[[], Awaitable[str]], limit_s: float) -> None:
    """Ask until nothing is wrong. Errors: `AssertionError` with what still is after the time."""
    end = time.monotonic() + limit_s
    while found := await wrong():
        assert time.monotonic() < end, found
        await asyncio.sleep(0.05)
