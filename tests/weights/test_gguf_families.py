"""Every family that GGUF files hold comes back as transformers had it: tensors bit for bit, settings field by field."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from asyncpage.weights.checkpoint import Checkpoint, open_checkpoint
from tests.weights.gguf_conversion import GEMMAS, published_tensors
from tests.weights.tiny_models import EXPERTS, MODELS, tiny

WriteGGUF = Callable[..., Path]

# Settings of transformers' configs that change no logits at inference, or that say the same as others.
NOISE = {
    "architectures", "dtype", "transformers_version", "_name_or_path", "initializer_range", "use_cache",
    "_sliding_window_pattern", "max_window_layers", "chunk_size_feed_forward",
}  # fmt: skip
# How a config.json on the Hub says what transformers 5 says in `rope_parameters` and `num_local_experts`.
OTHER_SPELLINGS = {"rope_theta", "rope_scaling", "partial_rotary_factor", "num_experts", "head_dim", "sliding_window"}


def expected_tensors(model: PreTrainedModel) -> dict[str, np.ndarray]:
    tensors = published_tensors(model)
    if model.config.model_type.removesuffix("_text") in GEMMAS:
        # One is added in the file, which costs the last bits.
        shift = np.float32(1)
        tensors |= {name: (rows + shift) - shift for name, rows in tensors.items() if name.endswith("norm.weight")}
    return tensors


def check_tensors(checkpoint: Checkpoint, expected: dict[str, np.ndarray]) -> None:
    assert set(checkpoint.names) == set(expected)
    for name, rows in expected.items():
        assert torch.equal(checkpoint.tensor(name, torch.float32), torch.from_numpy(rows)), name
        assert torch.equal(checkpoint.tensor(name, torch.bfloat16), torch.from_numpy(rows).bfloat16()), name


@pytest.mark.parametrize("name", MODELS)
def test_tensors_and_settings_are_those_of_the_original(write_gguf: WriteGGUF, name: str) -> None:
    model = MODELS[name]()
    checkpoint = open_checkpoint(write_gguf(model))
    check_tensors(checkpoint, expected_tensors(model))
    check_settings(checkpoint.config, model)
    checkpoint.close()


def check_settings(found: dict[str, Any], model: PreTrainedModel) -> None:
    """transformers' own class makes the same config of them, and knows every name."""
    original = model.config.to_dict()
    assert found["model_type"] == model.config.model_type
    assert found["architectures"] == [type(model).__name__]
    again = type(model.config)(**{key: value for key, value in found.items() if key != "model_type"}).to_dict()
    if original["rope_parameters"].get("rope_type") == "longrope":  # transformers computes it, the file says it
        factor = again["rope_parameters"].pop("attention_factor")
        assert factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(32)))
    for key in original.keys() - NOISE:
        if isinstance(original[key], dict):
            assert again[key].keys() == original[key].keys()
            for inner, value in original[key].items():
                assert again[key][inner] == (pytest.approx(value) if isinstance(value, float) else value), inner
        else:
            assert again[key] == original[key], key
    assert found.keys() - original.keys() <= OTHER_SPELLINGS


# transformers does not read the size of a Qwen3 head or expert: it must be the default.
READ_BY_TRANSFORMERS = {name: MODELS[name] for name in ("llama", "llama-tied", "qwen2", "gemma2", "gemma3", "phi3")} | {
    "phi3-longrope": MODELS["phi3-longrope"],
    "qwen3": lambda: tiny("Qwen3", head_dim=128),
    "qwen3moe": lambda: tiny("Qwen3Moe", head_dim=10, num_experts=3, **EXPERTS | {"moe_intermediate_size": 768}),
}


@pytest.mark.parametrize("name", READ_BY_TRANSFORMERS)
def test_transformers_reads_the_same_from_the_same_file(write_gguf: WriteGGUF, name: str) -> None:
    model = READ_BY_TRANSFORMERS[name]()
    path = write_gguf(model)
    other = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model.load_state_dict(other.state_dict())
    check_tensors(open_checkpoint(path), published_tensors(model))


@pytest.mark.parametrize("name", ["llama-biased", "mistral", "qwen2", "qwen3", "smollm3", "olmo2", "gemma2"])
def test_queries_keys_and_values_may_be_one_tensor_in_the_file(write_gguf: WriteGGUF, name: str) -> None:
    model = MODELS[name]()
    path = write_gguf(model, is_qkv_fused=True)
    check_tensors(open_checkpoint(path), expected_tensors(model))


@pytest.mark.parametrize("name", ["deepseek2-lite", "deepseek2"])
def test_keys_and_values_of_latent_attention_may_be_one_tensor_in_the_file(write_gguf: WriteGGUF, name: str) -> None:
    model = MODELS[name]()
    checkpoint = open_checkpoint(write_gguf(model, is_kv_split=False))
    check_tensors(checkpoint, expected_tensors(model))
    check_settings(checkpoint.config, model)


@pytest.mark.parametrize(
    ("name", "layers", "scalar"), [("gemma2", 46, 8), ("gemma2", 45, 10), ("gemma3", 62, 8), ("gemma3", 61, 10)]
)
def test_the_largest_gemmas_scale_attention_by_hidden_size_over_heads(
    write_gguf: WriteGGUF, name: str, layers: int, scalar: int
) -> None:
    # 4608 over 32 and 5376 over 32 in the published ones, whose configs say 144 and 168.
    config = {**MODELS[name]().config.to_dict(), "num_hidden_layers": layers, "layer_types": None}
    model = type(MODELS[name]())(type(MODELS[name]().config)(**config))
    assert open_checkpoint(write_gguf(model)).config["query_pre_attn_scalar"] == scalar
