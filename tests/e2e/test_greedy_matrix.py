"""Greedy answers equal another implementation's, whatever the batch, chunking, cache, memory, depth and losses.

One factor at a time from a base on the demo model; every combination on a tiny random one.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import signal
from asyncio import base_events
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncpage.config import EngineConfig
from asyncpage.engine import AsyncEngine
from asyncpage.text.tokenizer import load_tokenizer
from tests.e2e.oracle import Oracle, answer, check_idle, greedy

# 30 prompts, 1 to 1,500 tokens, around the sizes of blocks and chunks.
LENGTHS = (1, 2, 3, 5, 8, 13, 15, 16, 17, 24, 31, 32, 33, 47, 48, 49, 63, 64, 65, 80, 96, 100, 111, 127, 128, 129, 200)
LENGTHS += (333, 512, 1500)
ANSWER = 16


@pytest.fixture(scope="module")
def prompts(demo_model: Path) -> list[list[int]]:
    """Beginnings of texts of all kinds; some share their own beginnings, so that caching has something to do."""
    tokenizer = load_tokenizer(demo_model)
    source = tokenizer.encode(inspect.getsource(base_events))
    assert len(LENGTHS) == 30
    return [source[(i % 10) * 40 :][:length] for i, length in enumerate(LENGTHS)]


BASE: dict[str, Any] = {
    "placement": "inproc",
    "max_model_len": 1536,
    "max_num_seqs": 32,
    "exact": True,
    "cpu_threads": 1,  # tests run side by side
}
PROMPTS_FIRST = {"itl_target_ms": 0.0}
"""Else it depends on how slow the machine is whether enough run at once for one to be preempted."""

FACTORS: dict[str, dict[str, Any]] = {
    "mixed in a batch of 32": {},
    "caching off": {"enable_prefix_caching": False},
    "chunks of 16": {"max_num_batched_tokens": 32, "long_prefill_token_threshold": 16},
    "slices of a block": {"itl_target_ms": 0.001},
    "a pool of one prompt's size": {"num_kv_blocks": 97, "watermark": 0.0, **PROMPTS_FIRST},
    "a tree in a pool of one prompt's size": {
        "num_kv_blocks": 97,
        "watermark": 0.0,
        "prefix_index": "tree",
        **PROMPTS_FIRST,
    },
    "depth 2": {"pipeline_depth": 2},
}


async def all_at_once(
    config: EngineConfig, prompts: Sequence[Sequence[int]]
) -> tuple[list[list[int]], dict[str, float]]:
    engine = await AsyncEngine.start(config)
    try:
        answers = await asyncio.gather(*(answer(engine, prompt, greedy(ANSWER)) for prompt in prompts))
        await check_idle(engine)
        return answers, dict(engine.house.scheduler.stats())
    finally:
        await engine.stop()


async def after_a_loss(config: EngineConfig, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Answers to all at once, the executor killed while they come."""
    engine = await AsyncEngine.start(config)
    seen = 0

    def kill_once_tokens_flow() -> None:
        nonlocal seen
        seen += 1
        if seen == 40 and engine.executor.pid is not None:
            os.kill(engine.executor.pid, signal.SIGKILL)

    try:
        answers = await asyncio.gather(
            *(answer(engine, prompt, greedy(ANSWER), kill_once_tokens_flow) for prompt in prompts)
        )
        assert engine.house.scheduler.stats()["executor_losses"] == 1
        await check_idle(engine)
        return answers
    finally:
        await engine.stop()


def check(oracle: Oracle, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> None:
    checked, forgiven = oracle.checked, oracle.forgiven
    for prompt, tokens in zip(prompts, answers, strict=True):
        assert len(tokens) == ANSWER
        oracle.check(prompt, tokens)
    checked, forgiven = oracle.checked - checked, oracle.forgiven - forgiven
    assert forgiven * 1000 <= checked


@pytest.mark.parametrize("factor", FACTORS.values(), ids=FACTORS)
async def test_the_demo_model_answers_as_the_oracle_does(
    factor: dict[str, Any], demo_model: Path, demo_oracle: Oracle, prompts: list[list[int]]
) -> None:
    answers, stats = await all_at_once(EngineConfig(model=str(demo_model), **BASE, **factor), prompts)
    check(demo_oracle, prompts, answers)
    assert (stats["preemptions"] > 0) == ("num_kv_blocks" in factor)
    assert (stats["cached_tokens"] > 0) == ("enable_prefix_caching" not in factor)


async def test_the_demo_model_answers_the_same_alone(
    demo_model: Path, demo_oracle: Oracle, prompts: list[list[int]]
) -> None:
    engine = await AsyncEngine.start(EngineConfig(model=str(demo_model), **BASE))
    try:
        answers = [await answer(engine, prompt, greedy(ANSWER)) for prompt in prompts]
        await check_idle(engine)
    finally:
        await engine.stop()
    check(demo_oracle, prompts, answers)


async def test_on_its_grid_the_demo_model_answers_bit_for_bit_the_same_however_the_work_is_cut(
    demo_model: Path, prompts: list[list[int]]
) -> None:
    config = EngineConfig(model=str(demo_model), **BASE | {"exact": False})
    alone = await AsyncEngine.start(config)
    try:
        assert alone.handshake.held_as == ("Q4_1", "Q8_0")
        expected = [await answer(alone, prompt, greedy(ANSWER)) for prompt in prompts]
    finally:
        await alone.stop()
    for factor in FACTORS.values():
        answers, _ = await all_at_once(replace(config, **factor), prompts)
        assert answers == expected
    assert await after_a_loss(replace(config, placement="process", cpu_threads=2), prompts) == expected


async def test_the_demo_model_answers_the_same_after_its_executor_was_killed(
    demo_model: Path, demo_oracle: Oracle, prompts: list[list[int]]
) -> None:
    config = EngineConfig(model=str(demo_model), **BASE | {"placement": "process"})
    check(demo_oracle, prompts, await after_a_loss(config, prompts))


def combinations() -> Iterator[dict[str, Any]]:
    options: list[list[dict[str, Any]]] = [
        [{}, {"enable_prefix_caching": False}, {"prefix_index": "tree"}],
        [{}, {"max_num_batched_tokens": 16, "long_prefill_token_threshold": 5}],
        [{"num_kv_blocks": 200}, {"num_kv_blocks": 24}],
        [{"pipeline_depth": 1}, {"pipeline_depth": 2}],
        [{}, {"attention_backend": "reference"}],
    ]
    for parts in itertools.product(*options):
        yield {key: value for part in parts for key, value in part.items()}


@pytest.mark.parametrize("is_lost", [False, True], ids=["kept", "lost"])
@pytest.mark.parametrize("settings", list(combinations()), ids=lambda s: ",".join(f"{k}={v}" for k, v in s.items()))
async def test_a_tiny_model_answers_as_the_oracle_does_in_every_combination(
    settings: dict[str, Any], is_lost: bool, tiny_model: Path, tiny_oracle: Oracle
) -> None:
    prompts = [[(7 * i + j * j) % 509 + 3 for j in range(length)] for i, length in enumerate((1, 4, 9, 16, 17, 40))]
    prompts += [[*prompts[-1][:32], 5, 6, 7], prompts[-1]]
    config = EngineConfig(
        model=str(tiny_model),
        placement="inproc",
        block_size=4,
        max_num_seqs=8,
        max_model_len=64,
        cpu_threads=1,
        **PROMPTS_FIRST,
        **settings,
    )
    engine = await AsyncEngine.start(config)
    seen = 0

    def lose() -> None:
        nonlocal seen
        seen += 1
        if is_lost and seen == 25:
            engine.executor._lose("the test takes it away")

    try:
        answers = await asyncio.gather(*(answer(engine, prompt, greedy(ANSWER), lose) for prompt in prompts))
        stats = engine.house.scheduler.stats()
        await check_idle(engine)
    finally:
        await engine.stop()
    assert stats["executor_losses"] == is_lost
    assert (stats["preemptions"] > 0) == (settings["num_kv_blocks"] == 24)
    assert (stats["cached_tokens"] > 0) <= ("enable_prefix_caching" not in settings)
    check(tiny_oracle, prompts, answers)
