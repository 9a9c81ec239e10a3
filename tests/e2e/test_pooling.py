"""Vectors of decoders equal transformers' hidden states, however the prompt is cut, preempted, cached or lost."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from asyncpage import AsyncEngine, EngineConfig, Pooling
from asyncpage.cli.main import main
from asyncpage.errors import RequestError, UsageError
from asyncpage.messages import RequestOptions, TokenPrompt
from asyncpage.pipes.journal.reader import JournalReader
from asyncpage.text.tokenizer import load_tokenizer
from tests.e2e.oracle import Oracle, answer, check_idle, greedy

MEAN, LAST = RequestOptions(pooling=Pooling("mean")), RequestOptions(pooling=Pooling("last"))


def expected(oracle: Oracle, prompt: Sequence[int], kind: str) -> NDArray[np.float64]:
    """The states after the last norm, pooled and brought to length 1."""
    with torch.no_grad():
        states: torch.Tensor = oracle.model.model(torch.tensor([list(prompt)])).last_hidden_state[0].double()
    pooled = states[-1] if kind == "last" else states.mean(0)
    found: NDArray[np.float64] = (pooled / pooled.norm()).numpy()
    return found


async def check(engine: AsyncEngine, oracle: Oracle, prompts: Sequence[Sequence[int]]) -> None:
    """Every prompt pooled both ways, all at once."""
    jobs = [(prompt, options) for prompt in prompts for options in (LAST, MEAN)]
    found = await asyncio.gather(*(engine.embed(prompt, options) for prompt, options in jobs))
    for (prompt, options), vector in zip(jobs, found, strict=True):
        assert options.pooling is not None
        want = expected(oracle, prompt, options.pooling.kind)
        np.testing.assert_allclose(vector, want, atol=2e-5, rtol=0, err_msg=f"{options.pooling}, {len(prompt)} tokens")


def settings(model: Path, **changes: Any) -> EngineConfig:
    base = {"placement": "inproc", "cpu_threads": 1, "dtype": "float32", "max_model_len": 192, "max_num_seqs": 8}
    return EngineConfig(**{"model": str(model), **base, **changes})


def prompts_of(*lengths: int) -> list[list[int]]:
    return [[3 + (7 * length + 5 * place) % 500 for place in range(length)] for length in lengths]


async def test_the_demo_model_pools_as_the_oracle_does_and_answers_beside_it(
    demo_model: Path, demo_oracle: Oracle
) -> None:
    tokenizer = load_tokenizer(demo_model)
    texts = ["The sky is blue.", "def add(a, b):\n    return a + b", "Wie spät ist es? " * 8, "x"]
    prompts = [tokenizer.encode(text) for text in texts]
    engine = await AsyncEngine.start(
        settings(demo_model, exact=True, max_num_batched_tokens=32, long_prefill_token_threshold=9)
    )
    try:
        streamed = asyncio.ensure_future(answer(engine, prompts[2], greedy(8)))
        await check(engine, demo_oracle, prompts)
        demo_oracle.check(prompts[2], await streamed)
        by_text = await engine.embed(texts[0])  # a decoder's last state is what it gives unasked
        np.testing.assert_allclose(by_text, expected(demo_oracle, prompts[0], "last"), atol=2e-5, rtol=0)
        await check_idle(engine)
    finally:
        await engine.stop()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_batched_tokens": 16, "long_prefill_token_threshold": 5},
        {"enable_prefix_caching": False, "pipeline_depth": 2},
        {"prefix_index": "tree", "pipeline_depth": 2, "attention_backend": "reference"},
    ],
    ids=str,
)
async def test_chunks_depth_and_caching_change_no_vector(
    tiny_model: Path, tiny_oracle: Oracle, changes: dict[str, Any]
) -> None:
    engine = await AsyncEngine.start(settings(tiny_model, **changes))
    try:
        await check(engine, tiny_oracle, prompts_of(1, 2, 15, 16, 17, 48, 100, 192))
        await check_idle(engine)
    finally:
        await engine.stop()


async def test_preempted_prompts_are_seen_whole_once_more(tiny_model: Path, tiny_oracle: Oracle) -> None:
    config = settings(
        tiny_model,
        num_kv_blocks=26,
        block_size=8,
        max_num_batched_tokens=16,
        whole_prompt_admission=False,
        watermark=0.0,
        itl_target_ms=0.0,  # or a slow machine computes prompts so slowly that none is preempted
    )
    engine = await AsyncEngine.start(config)
    try:
        streams = [asyncio.ensure_future(answer(engine, prompt, greedy(60))) for prompt in prompts_of(9, 11)]
        await check(engine, tiny_oracle, prompts_of(90, 110, 120, 150))
        for prompt, stream in zip(prompts_of(9, 11), streams, strict=True):
            tiny_oracle.check(prompt, await stream)
        assert engine.house.scheduler.stats()["preemptions"] > 0
        await check_idle(engine)
    finally:
        await engine.stop()


async def test_a_prefix_hit_serves_the_last_state_and_never_a_mean(tiny_model: Path, tiny_oracle: Oracle) -> None:
    [prompt] = prompts_of(120)
    engine = await AsyncEngine.start(settings(tiny_model))
    try:
        await check(engine, tiny_oracle, [prompt])
        before = engine.house.scheduler.stats()["cached_tokens"]
        await engine.embed(prompt, MEAN)
        assert engine.house.scheduler.stats()["cached_tokens"] == before
        await engine.embed(prompt, LAST)
        assert engine.house.scheduler.stats()["cached_tokens"] > before + 100
        await check(engine, tiny_oracle, [prompt, [*prompt, 9]])
    finally:
        await engine.stop()


async def test_a_lost_executor_is_a_pause_and_the_journal_replays_without_a_vector_in_it(
    tiny_model: Path, tiny_oracle: Oracle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.journal"
    config = settings(tiny_model, placement="process", max_num_batched_tokens=8, journal=str(path))
    engine = await AsyncEngine.start(config)
    try:
        checked = asyncio.ensure_future(check(engine, tiny_oracle, prompts_of(60, 90, 120)))
        while engine.house.scheduler.stats()["steps"] < 20:
            await engine.ping(60)
        assert engine.executor.pid is not None
        os.kill(engine.executor.pid, signal.SIGKILL)
        await checked
        assert engine.house.scheduler.stats()["executor_losses"] == 1
        last = np.array(await engine.embed(prompts_of(60)[0], LAST), dtype="<f4")
        await check_idle(engine)
    finally:
        await engine.stop()
    recorded = b"".join(record.packed for record in JournalReader(path).records())
    assert last[:2].tobytes() not in recorded
    assert main(["replay", str(path)]) == 0
    assert "every decision is the same" in capsys.readouterr().out


async def test_rows_whose_states_are_not_numbers_fail_alone(tmp_path: Path, tiny_model: Path) -> None:
    """A token whose embedding is NaN, beside others."""
    folder = tmp_path / "nan"
    shutil.copytree(tiny_model, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][77] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    engine = await AsyncEngine.start(settings(folder, enable_prefix_caching=False))
    try:
        jobs = [engine.embed(prompt, options) for prompt in ([5, 6, 7], [5, 77, 7]) for options in (LAST, MEAN)]
        found = await asyncio.gather(*jobs, return_exceptions=True)
        assert [type(item) for item in found] == [list, list, RequestError, RequestError]
        for failed in found[2:]:
            assert isinstance(failed, RequestError)
            assert failed.failure.status == 500
            assert "not numbers" in failed.failure.message
        await check_idle(engine)
    finally:
        await engine.stop()


async def test_what_cannot_be_pooled_is_refused(tiny_model: Path) -> None:
    with pytest.raises(UsageError, match="cls makes no embedding"):
        await AsyncEngine.start(settings(tiny_model, pooling="cls"))
    engine = await AsyncEngine.start(settings(tiny_model, pooling="none"))
    try:
        with pytest.raises(RequestError, match="makes no embeddings"):
            await engine.embed("a")
        with pytest.raises(RequestError, match="makes no embeddings"):
            await engine.embed("a", MEAN)
        assert len(await answer(engine, [5, 6], greedy(3))) == 3
    finally:
        await engine.stop()
    engine = await AsyncEngine.start(settings(tiny_model))
    try:
        with pytest.raises(RequestError, match="pool by last or mean"):
            await engine.embed("a", RequestOptions(pooling=Pooling("cls")))
        with pytest.raises(RequestError, match="max_tokens must be 0"):
            async for _ in engine.generate(TokenPrompt(b"\x05\0\0\0"), greedy(3), MEAN):
                pass
    finally:
        await engine.stop()
