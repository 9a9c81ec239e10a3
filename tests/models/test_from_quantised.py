"""A model from a quantised folder computes what the model of the dequantised weights does."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncpage.models.registry import build_model
from asyncpage.weights.checkpoint import open_checkpoint
from tests.weights.quantised_models import Pack, awq, fp8, gptq, write_quantised
from tests.weights.tiny_models import tiny

TOKENS = [5, 80, 33, 12, 7, 61, 20, 9, 44]
CASES: dict[str, tuple[dict[str, Any], Pack]] = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": False, "desc_act": True}, gptq(desc_act=True)
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}, awq()),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [16, 24]}, fp8((16, 24), name="weight_scale_inv")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_dequantised_model(name: str, tmp_path: Path, paged_model: Any) -> None:
    settings, pack = CASES[name]
    original = tiny("Qwen2", attention_bias=True)
    written = write_quantised(original, tmp_path, pack, settings, left_alone=("k_proj",))
    checkpoint = open_checkpoint(tmp_path)
    model = build_model(checkpoint.config, lambda name: checkpoint.tensor(name, torch.float32), torch.float32, "cpu")
    with torch.inference_mode():
        runner = paged_model(model, "cpu")
        row = runner.add(TOKENS)
        runner.step((row, 6))
        runner.step((row, 3))
        found = torch.stack(row.logits)
        written.stored = written.truth
        del written.config["quantization_config"]
        written.save()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the library's own, about itself
            oracle = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        truth = oracle(torch.tensor([TOKENS])).logits[0]
    assert (found - truth).abs().max() < 1e-4 * truth.abs().max()
