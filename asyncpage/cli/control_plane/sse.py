"""The load of `bench control-plane` over sockets: the real server on loopback, and clients in a process of their own.

INVARIANT: the rate is that of the tokens which clients had in their hands, by the clock.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from itertools import pairwise
from statistics import median

from asyncpage.cli.control_plane.loads import measured, new_engine
from asyncpage.cli.control_plane.result import Result
from asyncpage.cli.control_plane.window import BenchFailed, until
from asyncpage.server.config import ServerConfig
from asyncpage.server.http_server import HttpServer

_SPREAD_TELLINGS = 5  # the clients tell ten times a second; a rate is taken over half of one
_COMING_TOKENS = 1000  # the first clients must still be there when the last has come, however late that is


async def sse(clients: int, windows: int, window_tokens: int) -> Result:
    """`clients` streams at once, a client each, all of equal length. Errors: `BenchFailed`."""
    steps = -(-window_tokens // clients)
    tokens = _COMING_TOKENS + 3 * windows * steps  # what the windows take, and as much again between looks
    async with new_engine(clients, context=32 + tokens) as engine:
        server = HttpServer(engine, ServerConfig(port=0, log_requests=False))
        await server.start()
        _, port = server.url.rsplit(":", 1)
        cores = sorted(os.sched_getaffinity(0))
        command = [sys.executable, "-m", "asyncpage.cli.control_plane.sse_clients", port, str(clients), str(tokens)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            if len(cores) > 1:  # a core for each side, so that neither is moved about by the other
                os.sched_setaffinity(process.pid, cores[1:])
                os.sched_setaffinity(0, cores[:1])
            heard = asyncio.ensure_future(_hear(process))
            await until(lambda: engine.house.scheduler.stats()["running"] == clients)
            result = await measured(engine, "sse", clients, windows, window_tokens, None)
            told, whole = await heard
        finally:
            os.sched_setaffinity(0, cores)
            if process.returncode is None:
                process.kill()
            await process.wait()
            await server.stop()
        if whole != clients or told[-1][1] != clients * tokens:
            raise BenchFailed(
                f"sse: {whole} of {clients} answers came to their end, with {told[-1][1]} tokens of {clients * tokens}"
            )
    return replace(result, wall_tokens_per_s=rate_of(told))


async def _hear(process: asyncio.subprocess.Process) -> tuple[list[tuple[float, int]], int]:
    """What the clients told: seconds and tokens so far; at last, how many answers were whole."""
    told: list[tuple[float, int]] = []
    assert process.stdout is not None
    async for line in process.stdout:
        first, second = line.split()
        if first == b"done":
            return told, int(second)
        told.append((float(first), int(second)))
    raise BenchFailed("sse: the process of the clients died")


def rate_of(told: list[tuple[float, int]]) -> float:
    """Tokens a second from looks at (seconds, tokens) so far, one or more.

    The median over spans of half a second, without the time when clients were still coming or already leaving.
    Answers that were over before a span was are a span of their own, from the clients' beginning to their end.
    """
    spans = told[::_SPREAD_TELLINGS]
    if len(spans) < 2:
        spans = [(0.0, 0), told[-1]]
    rates = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(spans)]
    return median(rates[1:-1] or rates)
