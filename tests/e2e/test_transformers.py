"""Models that run through the transformers library, in the whole engine: batches, cached prefixes, preemption."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from asyncpage.config import EngineConfig
from asyncpage.engine import AsyncEngine
from tests.e2e.oracle import Oracle, answer, check_idle, greedy
from tests.models.tiny import tiny

ANSWER = 24
SHAPE: dict[str, Any] = {"vocab_size": 512, "max_position_embeddings": 256, "eos_token_id": 0}
MODELS: dict[str, dict[str, Any]] = {
    "Granite": {"logits_scaling": 3.0, "residual_multiplier": 0.7, "attention_multiplier": 0.2},
    "Cohere2": {"num_hidden_layers": 4, "sliding_window": 9, "logit_scale": 0.3, "head_dim": 8},
}


@pytest.mark.parametrize("name", MODELS)
async def test_answers_are_the_librarys_in_a_batch_with_cached_prefixes_that_is_preempted(
    name: str, tiny_model: Path, tmp_path: Path
) -> None:
    config, of = getattr(transformers, f"{name}Config"), getattr(transformers, f"{name}ForCausalLM")
    oracle = Oracle(tiny(config, of, SHAPE | MODELS[name]))
    oracle.model.save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / file, tmp_path)
    prompts = [[(7 * i + j * j) % 509 + 3 for j in range(length)] for i, length in enumerate((1, 9, 17, 40, 33, 38))]
    prompts += [[*prompts[3][:32], 5, 6, 7], prompts[3]]
    engine = await AsyncEngine.start(
        EngineConfig(
            model=str(tmp_path),
            placement="inproc",
            block_size=4,
            max_num_seqs=8,
            max_model_len=64,
            max_num_batched_tokens=32,
            cpu_threads=1,
            dtype="float32",
            num_kv_blocks=28 if name == "Granite" else 97,
            whole_prompt_admission=False,
            watermark=0.0,
            itl_target_ms=0.0,  # or a slow machine computes prompts so slowly that none is preempted
        )
    )
    try:
        answers = [await answer(engine, prompts[3], greedy(ANSWER))]
        answers += await asyncio.gather(*(answer(engine, prompt, greedy(ANSWER)) for prompt in prompts))
        stats = engine.house.scheduler.stats()
        await check_idle(engine)
    finally:
        await engine.stop()
    assert stats["cached_tokens"] > 0
    assert stats["preemptions"] > 0
    for prompt, tokens in zip([prompts[3], *prompts], answers, strict=True):
        assert len(tokens) == ANSWER
        oracle.check(prompt, tokens)
