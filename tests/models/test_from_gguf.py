"""Every family answers from a GGUF file as transformers does from the model that the file was made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from asyncpage.models.registry import build_model
from asyncpage.weights.checkpoint import open_checkpoint
from tests.models.tiny import check
from tests.weights.gguf_conversion import Options, write_gguf
from tests.weights.tiny_models import MODELS

NAMES = (
    "llama-biased",
    "mistral",
    "qwen2",
    "qwen2-yarn",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "phi3-longrope",
    "smollm3",
    "olmo2",
    "mixtral",
    "qwen3moe",
    "deepseek2-lite",
)


@pytest.mark.parametrize("name", NAMES)
def test_logits_from_a_gguf_file_are_those_of_the_original(name: str, tmp_path: Path, paged_model: Any) -> None:
    original = MODELS[name]().float().eval()
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.mul_(0.25)
    checkpoint = open_checkpoint(write_gguf(original, tmp_path / "model.gguf", Options()))
    model = build_model(
        checkpoint.config, lambda tensor: checkpoint.tensor(tensor, torch.float32), torch.float32, "cpu"
    )
    with torch.inference_mode():
        runner = paged_model(model, "reference")
        sequence = runner.add([(7 * at + at * at) % 97 for at in range(30)])
        runner.step((sequence, 19))
        runner.step((sequence, 11))
    check(original, [sequence])
