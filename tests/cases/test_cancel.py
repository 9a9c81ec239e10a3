"""Clients that leave: whatever they were waiting for stops within a second."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import Any

from tests.cases.client import COMPLETIONS
from tests.cases.invariants import until
from tests.cases.model_folder import Model
from tests.cases.process_state import memory_bytes
from tests.cases.suite import LONG_BLOCKS, Run, Suite, covers
from tests.cases.test_kv_scheduler import crowd_of


async def _is_quiet(run: Run, limit_s: float = 1.0) -> None:
    """Nothing runs or waits within the time, and no more tokens are made after it."""

    async def busy() -> str:
        gauges = await run.client.gauges()
        left = {name: gauges[name] for name in ("num_requests_running", "num_requests_waiting") if gauges[name]}
        return str(left) if left else ""

    await until(busy, limit_s * run.suite.slack)
    made = await _tokens_made(run)
    await asyncio.sleep(0.2)  # long enough for many steps
    assert await _tokens_made(run) == made


async def _tokens_made(run: Run) -> float:
    """The engine's own count of generated tokens."""
    answer = await run.client.get("/metrics")
    lines = [line for line in answer.body.decode().splitlines() if 'stat="generated_tokens"' in line]
    assert lines, "no count of generated tokens in /metrics"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@covers("CAN-01")
async def test_nothing_is_computed_for_a_client_that_left(suite: Suite, tiny_long: Model) -> None:
    async with suite.on(tiny_long, num_kv_blocks=LONG_BLOCKS) as run:
        body = {key: value for key, value in run.case.requests[0]["json"].items() if key != "client"}
        for how in ("fin", "rst"):
            for after_s in (0.0, 0.3):  # queued or prefilling, and decoding
                await run.client.leave(COMPLETIONS, body, after_s, how=how)
                await _is_quiet(run)
        await run.client.leave(
            COMPLETIONS, {**body, "prompt": {"$range": [3, 30000]}}, 0.3
        )  # in the middle of a prefill
        await _is_quiet(run)
        await run.client.leave(COMPLETIONS, {**body, "prompt": "x" * 100_000}, 0.3, how="upload")
        await _is_quiet(run)
        process = await crowd_of(run, 8, {**body, "model": run.client.names.values["$M"]})
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await _is_quiet(run)


@covers("CAN-03")
async def test_every_choice_of_every_prompt_goes_with_its_client(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        bodies: list[dict[str, Any]] = [
            {key: value for key, value in request["json"].items() if key != "client"} for request in run.case.requests
        ]
        for body in bodies:
            await run.client.leave(COMPLETIONS, body, 0.2)
            await _is_quiet(run)
        randomness = random.Random(3)
        repeats = 500 if suite.thorough else 60
        before = 0
        for turn in range(repeats):
            await run.client.leave(COMPLETIONS, bodies[turn % 2], randomness.choice((0.0, 0.005, 0.02)))
            if turn == repeats // 3:
                before = memory_bytes(run.server.pid)
        await _is_quiet(run)
        assert memory_bytes(run.server.pid) - before < 10 << 20
