"""Tiny random models by transformers, and the GGUF files that llama.cpp's converters would make of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaForCausalLM, PreTrainedModel

from tests.weights.gguf_conversion import Options, write_gguf
from tests.weights.tiny_models import tiny

WriteGGUF = Callable[..., Path]


@pytest.fixture(name="write_gguf")
def _write_gguf(tmp_path: Path) -> WriteGGUF:
    """Writes a model as GGUF; the other arguments are those of `Options`."""

    def write(model: PreTrainedModel, **options: Any) -> Path:
        return write_gguf(model, tmp_path / "model.gguf", Options(**options))

    return write


@pytest.fixture
def llama() -> Callable[..., LlamaForCausalLM]:
    """A Llama whose every count differs, and whose head size is not hidden size over heads."""

    def make(**changes: Any) -> LlamaForCausalLM:
        rope = {"rope_type": "default", "rope_theta": 500000.0}
        return tiny(
            "Llama", **{"hidden_size": 36, "head_dim": 8, "rms_norm_eps": 1e-5, "rope_parameters": rope} | changes
        )

    return make
