"""Families through the whole engine: cached prefixes, windows and preemption in a pool that fills."""

from __future__ import annotations

import asyncio
import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, SmolLM3Config, SmolLM3ForCausalLM

from asyncpage.config import EngineConfig
from asyncpage.engine import AsyncEngine
from asyncpage.models.registry import BUILT_IN, outline_model
from tests.e2e.oracle import Oracle, answer, check_idle, greedy
from tests.models.tiny import TINY, config_of, tiny

ANSWER = 24
SHAPE: dict[str, Any] = {"vocab_size": 512, "max_position_embeddings": 256, "eos_token_id": 0}
# Each with a pool that holds two requests of the full context, 16 blocks in each group, and hardly more.
MODELS: dict[str, Any] = {
    "Gemma 3, with six groups": (
        193,
        lambda: tiny(
            Gemma3TextConfig,
            Gemma3ForCausalLM,
            SHAPE | {"num_hidden_layers": 6, "head_dim": 8, "sliding_window": 9, "rope_parameters": None},
            norm=0.0,
        ),
    ),
    "SmolLM3, with two": (
        65,
        lambda: tiny(
            SmolLM3Config,
            SmolLM3ForCausalLM,
            SHAPE
            | {"num_hidden_layers": 4, "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 9},
        ),
    ),
}


@pytest.mark.parametrize("settings", [{}, {"prefix_index": "tree", "pipeline_depth": 2}], ids=["chain", "tree"])
@pytest.mark.parametrize("name", MODELS)
async def test_answers_beyond_the_window_are_the_oracles_in_a_batch_with_cached_prefixes(
    name: str, settings: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    blocks, make = MODELS[name]
    oracle = Oracle(make())
    oracle.model.save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / file, tmp_path)
    prompts = [[(7 * i + j * j) % 509 + 3 for j in range(length)] for i, length in enumerate((1, 9, 17, 40, 33, 38))]
    prompts += [[*prompts[3][:32], 5, 6, 7], prompts[3]]
    config = EngineConfig(
        model=str(tmp_path),
        placement="inproc",
        block_size=4,
        max_num_seqs=8,
        max_model_len=64,
        max_num_batched_tokens=32,
        cpu_threads=1,
        dtype="float32",
        num_kv_blocks=blocks,
        **settings,
    )
    engine = await AsyncEngine.start(config)
    try:
        answers = [await answer(engine, prompts[3], greedy(ANSWER))]
        answers += await asyncio.gather(*(answer(engine, prompt, greedy(ANSWER)) for prompt in prompts))
        stats = engine.house.scheduler.stats()
        await check_idle(engine)
    finally:
        await engine.stop()
    assert stats["cached_tokens"] > 0
    for prompt, tokens in zip([prompts[3], *prompts], answers, strict=True):
        assert len(tokens) == ANSWER
        oracle.check(prompt, tokens)


PLAIN: dict[str, str] = {"ministral": "mistral", "gemma3_text": "gemma3"}
"""Where a family's tests are not called by its model type."""


@pytest.mark.parametrize("model_type", [name for name in BUILT_IN if name not in ("bert", "ministral")])
async def test_answers_of_every_family_are_the_oracles_though_preempted(
    model_type: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SHAPE.items():
        monkeypatch.setitem(TINY, name, value)
    tests = importlib.import_module(f"tests.models.test_{PLAIN.get(model_type, model_type)}")
    oracle = Oracle(tests.oracle(next(iter(getattr(tests, "VARIANTS", None) or tests.MISTRAL))))
    oracle.model.save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / file, tmp_path)
    groups = len(outline_model(config_of(oracle.model), torch.float32).model.groups)
    prompts = [
        [(7 * i + j * j) % 509 + 3 for j in range(length)] for i, length in enumerate((30, 27, 21, 38, 25, 31, 19, 36))
    ]
    prompts[1][:24] = prompts[0][:24]
    config = EngineConfig(
        model=str(tmp_path),
        placement="inproc",
        block_size=4,
        max_num_seqs=8,
        max_model_len=64,
        max_num_batched_tokens=24,
        cpu_threads=1,
        dtype="float32",
        num_kv_blocks=1 + 17 * groups,  # one request of the full context in each group, and little more
        whole_prompt_admission=False,
        watermark=0.0,
        itl_target_ms=0.0,  # or a slow machine computes prompts so slowly that none is preempted
    )
    engine = await AsyncEngine.start(config)
    try:
        answers = await asyncio.gather(*(answer(engine, prompt, greedy(ANSWER)) for prompt in prompts))
        stats = engine.house.scheduler.stats()
        await check_idle(engine)
    finally:
        await engine.stop()
    assert stats["preemptions"] > 0
    assert stats["cached_tokens"] > 0
    for prompt, tokens in zip(prompts, answers, strict=True):
        assert len(tokens) == ANSWER
        oracle.check(prompt, tokens)
