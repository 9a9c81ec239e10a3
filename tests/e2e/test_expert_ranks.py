"""Experts over two ranks, with real weights: the same tokens as on one, whichever process is killed."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from asyncpage.config import EngineConfig
from asyncpage.engine import AsyncEngine
from asyncpage.errors import UsageError
from tests.e2e.oracle import Oracle, answer, check_idle, greedy

PROMPTS = [[(i * i * 7 + 3 * number + i) % 500 + 3 for i in range(12 + 5 * number)] for number in range(4)]
ANSWER = 24
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "num_experts_per_tok": 2,
    "eos_token_id": 0,
    "initializer_range": 0.4,
}
MAKERS: dict[str, Any] = {
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=5)),
    "qwen3_moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SIZES, num_experts=8, moe_intermediate_size=32, head_dim=16, norm_topk_prob=True)
    ),
}


def make_folder(name: str, folder: Path, tokenizer_of: Path) -> Any:
    torch.manual_seed(3)
    model = MAKERS[name]().eval()
    model.save_pretrained(folder)
    for file in tokenizer_of.glob("tokenizer*"):
        shutil.copy(file, folder)
    return model


def config_of(model: Path, **settings: Any) -> EngineConfig:
    return EngineConfig(**{"model": str(model), "max_num_seqs": 4, "block_size": 8, "cpu_threads": 1, **settings})


def ranks_of(engine: AsyncEngine) -> tuple[int, int]:
    """Their processes, to look at after their end too: rank 0 is the executor, the other one its child."""
    rank_0 = engine.executor.pid
    assert rank_0 is not None
    (rank_1,) = map(int, Path(f"/proc/{rank_0}/task/{rank_0}/children").read_text().split())
    return rank_0, rank_1


def check_ended(pidfds: list[int]) -> None:
    for pidfd in pidfds:
        ended, _, _ = select.select([pidfd], [], [], 20)
        os.close(pidfd)
        assert ended


async def answers(engine: AsyncEngine, kill_at: int = 0, victim: int = 0) -> list[list[int]]:
    """All prompts at once; with the token `kill_at` of them all the process `victim` is killed."""
    seen = 0

    def count() -> None:
        nonlocal seen
        seen += 1
        if seen == kill_at:
            os.kill(victim, signal.SIGKILL)

    return await asyncio.gather(*(answer(engine, prompt, greedy(ANSWER), count) for prompt in PROMPTS))


def round_matrices(model: Any, dtype: torch.dtype) -> None:
    """All but those that choose experts, which are held as they are."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and not name.endswith("mlp.gate.weight"):
                parameter.copy_(parameter.to(dtype))


@pytest.mark.parametrize(
    ("name", "killed", "held"), [("mixtral", "rank 1", "auto"), ("qwen3_moe", "rank 0", "bfloat16")]
)
async def test_two_ranks_give_the_tokens_of_one_though_one_of_them_is_killed(
    name: str, killed: str, held: str, tiny_model: Path, tmp_path: Path
) -> None:
    model = make_folder(name, tmp_path, tiny_model)
    if held != "auto":
        round_matrices(model, getattr(torch, held))
    oracle = Oracle(model)
    alone = await AsyncEngine.start(config_of(tmp_path, placement="inproc", weights_dtype=held))
    expected = await answers(alone)
    await alone.stop()
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        oracle.check(prompt, tokens)
    engine = await AsyncEngine.start(config_of(tmp_path, expert_parallel_size=2, weights_dtype=held))
    try:
        assert await answers(engine) == expected
        ranks = ranks_of(engine)
        pidfds, victim = [os.pidfd_open(pid) for pid in ranks], ranks[int(killed[-1])]
        assert await answers(engine, kill_at=30, victim=victim) == expected
        assert engine.house.scheduler.stats()["executor_losses"] == 1
        check_ended(pidfds)
        await check_idle(engine)
        pidfds = [os.pidfd_open(pid) for pid in ranks_of(engine)]
    finally:
        await engine.stop()
    check_ended(pidfds)


def test_ranks_need_a_process_that_may_end_with_them() -> None:
    with pytest.raises(UsageError, match="--expert-parallel-size 2 needs --placement process"):
        EngineConfig(expert_parallel_size=2, placement="inproc").check()
