"""Whole engines that guess ahead: the tokens of one that does not, through kills, preemption and a pipeline of two."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from asyncpage.cli.main import main
from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.errors import UsageError
from asyncpage.messages import Finish, TokenPrompt
from asyncpage.simulation.journal_steps import journal_steps
from tests.e2e.oracle import check_idle

STREAMS = 14


def prompt_of(stream: int) -> TokenPrompt:
    tokens = [(stream * 31 + place * place) % 509 + 3 for place in range(3 + 5 * (stream % 9))]
    return TokenPrompt(b"".join(token.to_bytes(4, "little") for token in tokens))


def sampling_of(stream: int) -> SamplingParams:
    """Every other chooses among four tokens, and so says again what it has said."""
    more = {"temperature": 0.6, "seed": stream, "top_p": 0.8} if stream % 3 == 2 else {"temperature": 0.0}
    if stream % 2:
        more["allowed_token_ids"] = (5, 60, 171, 300)
    return SamplingParams(max_tokens=30 + 5 * (stream % 5), logprobs=stream % 4 or None, ignore_eos=True, **more)


async def answers(
    engine: AsyncEngine, on_token: Callable[[], None] = lambda: None
) -> tuple[list[list[int]], list[Finish]]:
    async def one(stream: int) -> tuple[list[int], Finish]:
        tokens: list[int] = []
        finish = None
        async for part in engine.generate(prompt_of(stream), sampling_of(stream)):
            tokens += part.token_ids
            finish = part.finish or finish
            on_token()
        assert finish is not None
        return tokens, finish

    found = await asyncio.gather(*map(one, range(STREAMS)))
    return [tokens for tokens, _ in found], [finish for _, finish in found]


@pytest.fixture(scope="module")
def draft_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of one layer with the tokenizer of the tiny one."""
    folder = tmp_path_factory.mktemp("draft")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((tiny_model / name).read_text())
    config = LlamaConfig(
        vocab_size=512, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, eos_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def config_of(model: Path) -> EngineConfig:
    """Few blocks, so that rows are preempted, and few tokens a step, so that prompts run beside answers."""
    return EngineConfig(
        model=str(model),
        placement="inproc",
        max_num_seqs=8,
        max_model_len=128,
        block_size=8,
        num_kv_blocks=45,
        max_num_batched_tokens=40,
        cpu_threads=1,
        seed=1,
    )


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> list[list[int]]:
    async def run() -> list[list[int]]:
        engine = await AsyncEngine.start(config_of(tiny_model))
        tokens, finishes = await answers(engine)
        assert not any(finish.accepted_drafts + finish.rejected_drafts for finish in finishes)
        await engine.stop()
        return tokens

    return asyncio.run(run())


@pytest.mark.parametrize("kind", ["ngram", "itself", "another"])
@pytest.mark.parametrize("depth", [1, 2])
async def test_tokens_are_those_without_and_every_guess_is_accounted_for(
    tiny_model: Path, draft_model: Path, plain: list[list[int]], kind: str, depth: int
) -> None:
    config = replace(config_of(tiny_model), pipeline_depth=depth, num_speculative_tokens=3, speculation="ngram")
    if kind != "ngram":
        path = tiny_model if kind == "itself" else draft_model
        config = replace(config, speculation="draft", draft_model=str(path), kv_offload_gb=0.01)
    engine = await AsyncEngine.start(config)
    for _ in range(2):  # the second time with prefixes that are cached
        tokens, finishes = await answers(engine)
        assert tokens == plain
        assert [finish.completion_tokens for finish in finishes] == [len(one) for one in plain]
    stats = engine.house.scheduler.stats()
    assert stats["draft_tokens"] > 0
    if kind == "itself":
        assert stats["accepted_draft_tokens"] > 0.9 * stats["draft_tokens"]
    assert all(finish.accepted_drafts < finish.completion_tokens for finish in finishes)
    await check_idle(engine)
    await engine.stop()


async def test_a_killed_executor_costs_no_token_and_the_journal_is_replayed(
    tiny_model: Path, plain: list[list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.journal"
    config = replace(config_of(tiny_model), placement="process", speculation="ngram", journal=str(path))
    engine = await AsyncEngine.start(config)
    seen = 0

    def kill_once() -> None:
        nonlocal seen
        seen += 1
        if seen == 60:
            assert engine.executor.pid is not None
            os.kill(engine.executor.pid, signal.SIGKILL)

    tokens, _ = await answers(engine, kill_once)
    assert tokens == plain
    assert engine.house.scheduler.stats()["executor_losses"] == 1
    assert engine.house.scheduler.stats()["draft_tokens"] > 0
    await engine.stop()
    assert main(["replay", str(path)]) == 0
    assert "every decision is the same" in capsys.readouterr().out
    with pytest.raises(UsageError, match="recorded with --speculation ngram"):
        journal_steps(path)


@pytest.fixture
def foreign_model(draft_model: Path, tmp_path: Path) -> Path:
    """The draft model with two of its tokens changed for one another."""
    for file in draft_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    words = json.loads((tmp_path / "tokenizer.json").read_text())
    vocab = words["model"]["vocab"]
    first, second = (next(word for word, id in vocab.items() if id == wanted) for wanted in (400, 401))
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    return tmp_path


async def test_a_draft_model_with_another_vocabulary_is_refused_by_name(tiny_model: Path, foreign_model: Path) -> None:
    config = replace(config_of(tiny_model), speculation="draft", draft_model=str(foreign_model))
    with pytest.raises(UsageError, match=r"has another vocabulary: token 400 is b"):
        await AsyncEngine.start(config)


def test_the_benchmark_tells_the_gain_and_that_tokens_are_the_same(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", str(tiny_model), "--max-model-len", "256", "--cpu-threads", "1", "--placement", "inproc"]
    small = ["--max-tokens", "12", "--rounds", "1", "--max-concurrency", "2", "--text", "chat"]
    assert main(["bench", "speculation", *flags, *small, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["same_tokens"] is True
    assert result["speculation"] == "ngram"
    assert result["gain"] == result["decode_rate_on"] / result["decode_rate_off"]
    assert 0 <= result["acceptance"] <= 1
    assert main(["bench", "speculation", "--speculation", "off"]) == 2
    assert main(["bench", "speculation", "--rounds", "0"]) == 2
