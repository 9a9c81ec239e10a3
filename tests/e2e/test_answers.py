"""What an answer holds beside greedy tokens, against another implementation of the same model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import torch

from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.outputs import RequestOutput, TokenLogprob, gather
from tests.e2e.oracle import Oracle, answer, check_idle, greedy

PROMPT = [(i * i) % 500 + 3 for i in range(37)]


@pytest.fixture
async def engine(tiny_model: Path) -> AsyncIterator[AsyncEngine]:
    engine = await AsyncEngine.start(
        EngineConfig(
            model=str(tiny_model), placement="inproc", block_size=8, max_model_len=128, max_num_seqs=32, cpu_threads=1
        )
    )
    yield engine
    await check_idle(engine)
    await engine.stop()


async def whole(engine: AsyncEngine, prompt: Sequence[int], sampling: SamplingParams) -> RequestOutput:
    parts = [part async for part in engine.generate(prompt, sampling)]
    return gather(
        parts,
        sampling.n,
        has_logprobs=sampling.logprobs is not None,
        has_prompt_logprobs=sampling.prompt_logprobs is not None,
    )


def oracle_logprobs(oracle: Oracle, tokens: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = oracle.model(torch.tensor([list(tokens)])).logits[0]
    return logits.log_softmax(-1)


def check_entry(entry: TokenLogprob, row: torch.Tensor, k: int) -> None:
    assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-4)
    best = row.topk(k)
    told = [token for token, *_ in entry.top]
    assert len(set(told)) == k
    # Tokens by what the model says of them: two that are nearer than rounding may stand in either order.
    assert row[told].tolist() == pytest.approx(best.values.tolist(), abs=1e-4)
    assert [logprob for *_, logprob in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert entry.rank == 1 + int((row > row[entry.token]).sum())


async def test_logprobs_of_tokens_are_the_models(engine: AsyncEngine, tiny_oracle: Oracle) -> None:
    output = await whole(engine, PROMPT, greedy(6, logprobs=4))
    tokens = output.outputs[0].token_ids
    rows = oracle_logprobs(tiny_oracle, [*PROMPT, *tokens])[len(PROMPT) - 1 :]
    assert output.outputs[0].logprobs is not None
    for entry, token, row in zip(output.outputs[0].logprobs, tokens, rows, strict=False):
        assert entry.token == token
        check_entry(entry, row, 4)


async def test_prompt_logprobs_are_the_models_also_when_the_prompt_is_cached(
    engine: AsyncEngine, tiny_oracle: Oracle
) -> None:
    rows = oracle_logprobs(tiny_oracle, PROMPT)
    for _ in range(2):
        output = await whole(engine, PROMPT, greedy(2, prompt_logprobs=3))
        assert output.prompt_logprobs is not None
        first, *rest = output.prompt_logprobs
        assert first.logprob is None
        assert [entry.token for entry in rest] == PROMPT[1:]
        for entry, row in zip(rest, rows[:-1], strict=True):
            check_entry(entry, row, 3)
    assert (await whole(engine, PROMPT, greedy(2))).cached_tokens == len(PROMPT) - 1  # one is always computed


async def test_prompt_logprobs_are_the_models_when_prompts_are_cut_and_computed_again(
    tiny_model: Path, tiny_oracle: Oracle
) -> None:
    engine = await AsyncEngine.start(
        EngineConfig(
            model=str(tiny_model),
            placement="inproc",
            block_size=4,
            max_model_len=64,
            max_num_seqs=6,
            num_kv_blocks=18,  # one request's worth: the six preempt one another
            itl_target_ms=0.0,  # or a slow machine computes prompts so slowly that none is preempted
            max_num_batched_tokens=16,
            long_prefill_token_threshold=5,
            cpu_threads=1,
        )
    )
    prompts = [[(7 * i + j * j) % 509 + 3 for j in range(30 + i)] for i in range(6)]
    try:
        outputs = await asyncio.gather(*(whole(engine, prompt, greedy(20, prompt_logprobs=2)) for prompt in prompts))
        assert engine.house.scheduler.stats()["preemptions"] > 0
        await check_idle(engine)
    finally:
        await engine.stop()
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.prompt_logprobs is not None
        _, *rest = output.prompt_logprobs
        assert [entry.token for entry in rest] == prompt[1:]
        for entry, row in zip(rest, oracle_logprobs(tiny_oracle, prompt)[:-1], strict=True):
            check_entry(entry, row, 2)


async def test_a_seeded_answer_is_the_same_alone_and_among_others(engine: AsyncEngine) -> None:
    sampling = SamplingParams(max_tokens=30, seed=9, temperature=1.2, top_p=0.95, ignore_eos=True, presence_penalty=0.5)
    alone = await answer(engine, PROMPT, sampling)
    assert await answer(engine, PROMPT, sampling) == alone
    others = [answer(engine, [i + 3] * (1 + 3 * i), SamplingParams(max_tokens=20, seed=i)) for i in range(20)]
    among, *_ = await asyncio.gather(answer(engine, PROMPT, sampling), *others)
    assert among == alone
    assert (
        await answer(engine, PROMPT, SamplingParams(max_tokens=30, seed=10, temperature=1.2, ignore_eos=True)) != alone
    )


async def test_choices_of_one_seed_differ_and_come_again(engine: AsyncEngine) -> None:
    sampling = SamplingParams(n=4, max_tokens=20, seed=3, ignore_eos=True)
    first = [choice.token_ids for choice in (await whole(engine, PROMPT, sampling)).outputs]
    assert len(set(first)) == 4
    assert [choice.token_ids for choice in (await whole(engine, PROMPT, sampling)).outputs] == first


async def test_an_engine_without_a_seed_answers_differently_each_time(engine: AsyncEngine) -> None:
    sampling = SamplingParams(max_tokens=20, ignore_eos=True)
    assert await answer(engine, PROMPT, sampling) != await answer(engine, PROMPT, sampling)


@pytest.mark.parametrize("kv_dtype", ["auto", "float16"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
async def test_half_precision_stays_close_to_the_model(
    dtype: str, kv_dtype: str, tiny_model: Path, tiny_oracle: Oracle
) -> None:
    engine = await AsyncEngine.start(
        EngineConfig(
            model=str(tiny_model),
            placement="inproc",
            dtype=dtype,
            kv_cache_dtype=kv_dtype,
            max_model_len=64,
            max_num_seqs=4,
            cpu_threads=1,
        )
    )
    try:
        tokens = await answer(engine, PROMPT, greedy(12))
    finally:
        await engine.stop()
    rows = oracle_logprobs(tiny_oracle, [*PROMPT, *tokens])[len(PROMPT) - 1 : -1]
    # bfloat16 keeps 8 bits: logits of this model, of a size of about 10, are off by some hundredths.
    lost = [float(row.max() - row[token]) for row, token in zip(rows, tokens, strict=True)]
    assert max(lost) < 0.5
    assert engine.handshake.dtype == dtype
    assert engine.handshake.kv_dtype == (dtype if kv_dtype == "auto" else kv_dtype)
