"""Executors are killed, requests are aborted, clients leave: nothing is lost, mixed up or left behind."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.errors import RequestError
from asyncpage.messages import TokenPrompt
from asyncpage.pipes.launcher import ProcessLauncher
from tests.e2e.oracle import answer, check_idle

STREAMS = 50
KILLS = 20
TOKENS = 200
DEADLY_TOKEN = 511  # a prompt that ends with it kills its executor


def prompt_of(stream: int) -> list[int]:
    return [(stream * 31 + i * i) % 509 + 3 for i in range(4 + stream % 30)]


def sampling_of(stream: int) -> SamplingParams:
    """Half of them greedy, half drawn with a seed of their own."""
    temperature = 0.0 if stream % 2 else 0.8
    return SamplingParams(
        max_tokens=TOKENS, temperature=temperature, seed=stream, ignore_eos=True, frequency_penalty=0.3, top_p=0.9
    )


def config_of(model: Path, placement: str) -> EngineConfig:
    return EngineConfig(
        model=str(model), placement=placement, max_num_seqs=64, max_model_len=256, block_size=8, cpu_threads=1
    )


async def all_streams(engine: AsyncEngine, on_token: Callable[[], None] = lambda: None) -> list[list[int]]:
    return await asyncio.gather(*(answer(engine, prompt_of(i), sampling_of(i), on_token) for i in range(STREAMS)))


async def test_twenty_kills_under_fifty_streams_change_no_token(tiny_model: Path) -> None:
    engine = await AsyncEngine.start(config_of(tiny_model, "inproc"))
    undisturbed = await all_streams(engine)
    await engine.stop()

    engine = await AsyncEngine.start(config_of(tiny_model, "process"))
    randomness = random.Random(5)
    pids: list[int] = []
    states: list[str] = []
    seen, due = 0, 300

    def kill_now_and_then() -> None:
        nonlocal seen, due
        seen += 1
        pid = engine.executor.pid
        if seen >= due and len(pids) < KILLS and engine.state == "ready" and pid is not None and pid not in pids:
            pids.append(pid)
            os.kill(pid, signal.SIGKILL)
            due = seen + randomness.randint(51, 700)
            # A new executor takes more than two seconds to load, so half a second later the answer must be no.
            asyncio.get_running_loop().call_later(0.5, lambda: states.append(engine.state))

    try:
        while len(pids) < KILLS:
            due = min(due, seen + 300)
            assert await all_streams(engine, kill_now_and_then) == undisturbed
        assert engine.house.scheduler.stats()["executor_losses"] == KILLS
        assert set(states) == {"restarting"}
        assert engine.state == "ready"
        await check_idle(engine)
    finally:
        await engine.stop()
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]  # noqa: ASYNC240 - procfs does not block


async def test_two_thousand_random_aborts_leave_no_block_behind(tiny_model: Path) -> None:
    engine = await AsyncEngine.start(
        EngineConfig(
            model=str(tiny_model),
            placement="inproc",
            max_num_seqs=32,
            max_model_len=128,
            block_size=8,
            num_kv_blocks=80,  # a third of what the batch asks for: aborts meet preempted requests too
            max_queue=4096,
            max_num_batched_tokens=48,
            cpu_threads=1,
        )
    )
    randomness = random.Random(11)

    async def abort_somewhere(stream: int) -> None:
        prompt = TokenPrompt(b"".join(t.to_bytes(4, "little") for t in prompt_of(stream % 90)))
        tokens_wanted = randomness.choice((0, 0, 1, 2, 5))
        parts = engine.generate(prompt, SamplingParams(max_tokens=40, n=randomness.choice((1, 1, 3)), seed=stream))
        if tokens_wanted == 0:
            first = asyncio.ensure_future(anext(parts))
            for _ in range(randomness.randint(0, 60)):
                await asyncio.sleep(0)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        else:
            for _ in range(tokens_wanted):
                if await anext(parts, None) is None:
                    break
        await parts.aclose()

    try:
        for start in range(0, 2000, 100):
            await asyncio.gather(*(abort_somewhere(stream) for stream in range(start, start + 100)))
        assert await engine.drain(60)
        await check_idle(engine)
    finally:
        await engine.stop()


async def test_the_request_that_kills_its_executor_is_failed_and_its_neighbours_are_not(tiny_model: Path) -> None:
    launcher = ProcessLauncher((str(Path(__file__).with_name("deadly_executor.py")),))
    engine = await AsyncEngine.start(config_of(tiny_model, "process"), launcher=launcher)
    deadly = [400, 401, 402, DEADLY_TOKEN]
    try:
        neighbours = [asyncio.ensure_future(answer(engine, prompt_of(i), sampling_of(i))) for i in range(3)]
        with pytest.raises(RequestError, match="whenever it ran"):
            await answer(engine, deadly, SamplingParams(max_tokens=5))
        for tokens in await asyncio.gather(*neighbours):
            assert len(tokens) == TOKENS
        assert engine.house.scheduler.stats()["executor_losses"] == 3
        await check_idle(engine)
    finally:
        await engine.stop()
