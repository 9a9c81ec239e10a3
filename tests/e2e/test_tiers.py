"""Blocks outside the device, with real weights: a restart, a kill and a damaged file change no token."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from asyncpage.config import EngineConfig
from asyncpage.engine import AsyncEngine
from asyncpage.errors import UsageError
from asyncpage.messages import TokenPrompt
from tests.e2e.oracle import Oracle, check_idle, greedy

SYSTEM = [(i * i * 7 + 3 * i) % 500 + 3 for i in range(161)]
BLOCKS = 20  # of 8 tokens, of the system prompt alone


def config_of(model: Path, **settings: Any) -> EngineConfig:
    return EngineConfig(**{"model": str(model), "max_num_seqs": 4, "block_size": 8, "cpu_threads": 1, **settings})


async def ask(engine: AsyncEngine, prompt: Sequence[int], count: int = 8) -> tuple[list[int], int]:
    """The tokens, and how many of the prompt's were not computed."""
    tokens: list[int] = []
    cached = -1
    data = b"".join(token.to_bytes(4, "little") for token in prompt)
    async for part in engine.generate(TokenPrompt(data), greedy(count)):
        tokens += part.token_ids
        if part.finish is not None:
            cached = part.finish.cached_tokens
    return tokens, cached


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def stat(engine: AsyncEngine, actor: str, name: str) -> float:
    return (await engine.ping(60))[actor][name]


async def stored(engine: AsyncEngine, blocks: int) -> None:
    """Wait until so many blocks lie in files."""
    async with asyncio.timeout(60):
        while await stat(engine, "kv_manager", "file_blocks") < blocks:
            pass


async def test_answers_are_the_same_with_tiers_and_after_a_restart(
    tiny_model: Path, tiny_oracle: Oracle, tmp_path: Path
) -> None:
    prompts = [[*SYSTEM, 7, number] for number in range(3)]
    plain = await AsyncEngine.start(config_of(tiny_model, enable_prefix_caching=False, placement="inproc"))
    expected = [(await ask(plain, prompt))[0] for prompt in prompts]
    await plain.stop()
    for prompt, tokens in zip(prompts, expected, strict=True):
        tiny_oracle.check(prompt, tokens)

    engine = await AsyncEngine.start(config_of(tiny_model, kv_dir=str(tmp_path)))
    assert await ask(engine, prompts[0]) == (expected[0], 0)
    # Of 163 tokens and the 7 computed behind them 21 blocks are full.
    await stored(engine, 21)
    assert await ask(engine, prompts[1]) == (expected[1], 160 + 2)  # and two tokens of the block behind
    await check_idle(engine)
    await engine.stop()
    assert {path.stat().st_mode & 0o777 for path in files_in(tmp_path)} == {0o600}

    for placement in ("process", "inproc"):
        engine = await AsyncEngine.start(config_of(tiny_model, kv_dir=str(tmp_path), placement=placement))
        await stored(engine, 21)
        assert await ask(engine, prompts[2]) == (expected[2], 8 * BLOCKS)
        assert await stat(engine, "kv_manager", "blocks_loaded") == BLOCKS
        await check_idle(engine)
        await engine.stop()


async def test_a_pool_of_one_prompt_gives_its_blocks_to_the_host_and_gets_them_back(
    tiny_model: Path, tiny_oracle: Oracle
) -> None:
    prompts = [[(token + 5 * number) % 500 + 3 for token in SYSTEM] for number in range(3)]
    engine = await AsyncEngine.start(
        config_of(tiny_model, max_model_len=208, num_kv_blocks=30, kv_offload_gb=0.01, watermark=0.0)
    )
    for turn in range(2):
        for prompt in prompts:
            tokens, cached = await ask(engine, prompt)
            tiny_oracle.check(prompt, tokens)
            assert cached == turn * 8 * BLOCKS
    await check_idle(engine)
    await engine.stop()


async def test_the_host_tier_survives_a_killed_executor(tiny_model: Path, tiny_oracle: Oracle) -> None:
    engine = await AsyncEngine.start(config_of(tiny_model, kv_offload_gb=0.01))
    tokens, _ = await ask(engine, SYSTEM)
    tiny_oracle.check(SYSTEM, tokens)
    async with asyncio.timeout(60):
        while await stat(engine, "kv_manager", "blocks_saved") < BLOCKS:
            pass
    await check_idle(engine)
    pid = engine.executor.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while engine.executor.pid == pid:
        await engine.ping(60)
    assert await ask(engine, SYSTEM) == (tokens, 8 * BLOCKS)
    assert await stat(engine, "scheduler", "executor_losses") == 1
    await engine.stop()


async def test_damaged_files_are_computed_again(tiny_model: Path, tiny_oracle: Oracle, tmp_path: Path) -> None:
    engine = await AsyncEngine.start(config_of(tiny_model, kv_dir=str(tmp_path)))
    tokens, _ = await ask(engine, SYSTEM)
    tiny_oracle.check(SYSTEM, tokens)
    await stored(engine, 21)
    await engine.stop()
    whole = {path: path.read_bytes() for path in files_in(tmp_path)}
    for damage in ("payload", "header", "end", "all"):
        for number, (path, contents) in enumerate(whole.items()):
            match damage:
                case "payload" if number % 3 == 0:
                    path.write_bytes(contents[:-9] + bytes([contents[-9] ^ 4]) + contents[-8:])
                case "header" if number % 3 == 1:
                    path.write_bytes(contents[:70] + b"?" + contents[71:])
                case "end" if number % 3 == 2:
                    path.write_bytes(contents[: len(contents) // 2])
                case "all":
                    path.write_bytes(contents[:-1] + bytes([contents[-1] ^ 128]))
                case _:
                    path.write_bytes(contents)
        engine = await AsyncEngine.start(config_of(tiny_model, kv_dir=str(tmp_path), placement="inproc"))
        again, cached = await ask(engine, SYSTEM)
        assert again == tokens
        assert cached < 8 * BLOCKS
        await stored(engine, 21)  # what was damaged is stored anew
        await check_idle(engine)
        await engine.stop()


async def test_another_models_files_are_not_taken(tiny_model: Path, tiny_oracle: Oracle, tmp_path: Path) -> None:
    engine = await AsyncEngine.start(config_of(tiny_model, kv_dir=str(tmp_path), placement="inproc"))
    await ask(engine, SYSTEM)
    await stored(engine, 21)
    await engine.stop()
    engine = await AsyncEngine.start(
        config_of(tiny_model, kv_dir=str(tmp_path), placement="inproc", kv_cache_dtype="bfloat16")
    )
    _, cached = await ask(engine, SYSTEM)
    assert cached == 0
    assert await stat(engine, "kv_manager", "blocks_loaded") == 0
    await engine.stop()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"kv_offload_gb": 1e6}, "GiB are available"),
        ({"kv_offload_gb": 1.0, "enable_prefix_caching": False}, "--no-enable-prefix-caching"),
        ({"kv_dir": "/dev/null"}, "--kv-dir"),
    ],
)
async def test_what_cannot_be_is_refused_at_the_start(tiny_model: Path, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        await AsyncEngine.start(config_of(tiny_model, **settings))
