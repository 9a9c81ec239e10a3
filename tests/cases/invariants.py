"""I0: what must be as before once a case is over.

`suite` takes a baseline when a server is up and holds the server to it after every case.

INVARIANT: /health is 200; the canary answers as on the first day; nothing runs, waits or holds a block; no traceback
and no forgotten task in the log; processes, descriptors, shared memory and memory as before, but for one process that
compiles grammars and stays for the next one, small; no unexpected answer.
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
MOST_COMPILER = 128 * 1024 * 1024
"""Resident, of the process that compiles grammars: 30 MB when it is ready, and what its last grammars left."""

COMPILER_ENDS = Counter(socket=2)
"""What the API process holds of it: the other ends of its standard input and output."""

SIGNS = ("Traceback", "never retrieved", "never awaited", "ResourceWarning")
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_blocks_used")
CANARY = {
    "model": "$M", "prompt": "The canary sings", "max_tokens": 12, "temperature": 0, "ignore_eos": True,
    "return_token_ids": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Baseline:
    """A server at rest: API process first, executor second. `compilers`: how many grammar compilers it has."""

    canary: str
    gauges: dict[str, float]
    descriptors: tuple[Counter[str], ...]
    memory: tuple[int, ...]
    compilers: int
    log_at: int


async def rest(server: Server, client: Client, canary: str | None = None) -> Baseline:
    """How the server is now. `canary`: the first day's, to hold it to."""
    await client.close()
    await client.open()
    found = await sing(client) if canary is None else canary
    gauges = await client.gauges()
    await client.close()
    compilers = server.compilers()
    family = _lasting(server, compilers)
    return Baseline(
        canary=found,
        gauges={name: gauges[name] for name in GAUGES},
        descriptors=tuple(Counter(descriptors(pid)) for pid in family),
        memory=tuple(memory_bytes(pid) for pid in family),
        compilers=len(compilers),
        log_at=server.log_size(),
    )


def _lasting(server: Server, compilers: Sequence[int]) -> list[int]:
    """The processes that a server has from its start to its end."""
    return [pid for pid in server.family() if pid not in compilers]


async def sing(client: Client) -> str:
    """The canary's answer without what is new every time; what was cached or guessed right is no part of an answer."""
    answer = await client.post(COMPLETIONS, CANARY)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    del found["id"], found["created"], found["usage"]["prompt_tokens_details"]
    del found["usage"]["completion_tokens_details"]
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
        compilers = server.compilers()
        family = _lasting(server, compilers)
        if len(family) != len(before.descriptors):
            return f"{len(family)} processes, {len(before.descriptors)} before"
        if len(compilers) > 1:
            return f"{len(compilers)} processes compile grammars"
        ends = (COMPILER_ENDS if len(compilers) > before.compilers else Counter[str](), Counter[str]())
        for pid, counted, more in zip(family, before.descriptors, ends, strict=True):
            left = Counter(descriptors(pid)) - counted - more
            if left:
                return f"process {pid} has more descriptors: {dict(left)}"
        for pid in (*family, *compilers):
            if segments(pid):
                return f"process {pid} has named shared memory: {segments(pid)}"
        return ""

    await until(as_before, IDLE_S * slack)
    compilers = server.compilers()
    for name, pid, was in zip(("API process", "executor"), _lasting(server, compilers), before.memory, strict=True):
        grown = memory_bytes(pid) - was
        assert grown <= growth, f"the {name} has grown by {grown >> 20} MiB"
    for pid in compilers:
        held = memory_bytes(pid)
        assert held <= MOST_COMPILER, f"the grammar compiler holds {held >> 20} MiB"
    log = server.log(before.log_at)
    for sign in signs:
        assert sign not in log, f"the log has {sign!r}:\n{log[:4000]}"
    assert not client.complaints, "\n".join(client.complaints)


async def ready(client: Client) -> str:
    """Nothing when the server would take a request, for `until`."""
    answer = await client.get("/ready")
    return "" if answer.status == 200 else f"/ready is {answer.status}"


async def until(wrong: Callable[[], Awaitable[str]], limit_s: float) -> None:
    """Ask until nothing is wrong. Errors: `AssertionError` with what still is after the time."""
    end = time.monotonic() + limit_s
    while found := await wrong():
        assert time.monotonic() < end, found
        await asyncio.sleep(0.05)
