"""Files whose keys or tensors are missing or nonsense are refused with a name, at once; nothing else happens."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncpage.errors import FormatError
from asyncpage.formats.gguf import GGUFFile
from asyncpage.weights.checkpoint import open_checkpoint
from tests.weights.gguf_conversion import ARCHITECTURES, Options, Tensors, converted, write_parts
from tests.weights.gguf_key_conversion import settings
from tests.weights.tiny_models import MODELS

NAMES = ["llama-biased", "mixtral", "qwen2-yarn", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3-longrope", "smollm3",
         "olmo2", "deepseek2-lite", "deepseek2"]  # fmt: skip
NONSENSE: list[Any] = ["nonsense", True, 0, 2**32 - 1, float("nan"), -1.0, [7] * 3]

# Without them the loader of llama.cpp stops as well.
NEEDED = ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
          "attention.layer_norm_rms_epsilon")  # fmt: skip


def parts(name: str) -> tuple[str, dict[str, Any], Tensors]:
    model = MODELS[name]()
    architecture = ARCHITECTURES.get(model.config.model_type, model.config.model_type)
    keys = {key: value for key, value in settings(model.config, is_kv_split=True).items() if value is not None}
    return architecture, keys, dict(converted(model, Options()))


def refusal(path: Path) -> str:
    """What is said against the file, after its name; nothing when it is read."""
    try:
        checkpoint = open_checkpoint(path)
    except FormatError as error:
        return str(error).removeprefix(f"{path}: ")
    assert len(checkpoint.names) < 500
    checkpoint.close()
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_a_key_of_nonsense_is_refused_or_harmless(tmp_path: Path, name: str) -> None:
    architecture, keys, tensors = parts(name)
    path = tmp_path / "model.gguf"
    for key, value in itertools.product(keys, NONSENSE):
        said = refusal(write_parts(path, architecture, keys | {key: value}, tensors))
        if value in ("nonsense", True, -1.0) and not (value is True and key == "expert_weights_norm"):
            assert said.startswith(f"{architecture}.{key}: "), (key, value)


@pytest.mark.parametrize("name", NAMES)
def test_a_key_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    architecture, keys, tensors = parts(name)
    for key in keys:
        left = {other: value for other, value in keys.items() if other != key}
        said = refusal(write_parts(tmp_path / "model.gguf", architecture, left, tensors))
        if key in NEEDED or key in ("expert_used_count", "attention.kv_lora_rank"):
            assert said.startswith(f"{architecture}.{key}: is missing")


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_of_another_name_or_shape_is_named(tmp_path: Path, name: str) -> None:
    architecture, keys, tensors = parts(name)
    path = write_parts(tmp_path / "model.gguf", architecture, keys, tensors)
    whole = path.read_bytes()
    for there, info in GGUFFile(path).tensors.items():
        spelled = there.encode()
        renamed = spelled[:-1] + b"_"
        path.write_bytes(whole.replace(spelled, renamed))
        assert refusal(path).startswith("tensor '"), there
        axes = b"".join(size.to_bytes(8, "little") for size in info.shape[::-1])
        other = b"".join(size.to_bytes(8, "little") for size in (*info.shape[1:][::-1], info.shape[0] + 1))
        kinds = spelled + len(info.shape).to_bytes(4, "little")
        assert whole.count(kinds + axes) == 1
        path.write_bytes(whole.replace(kinds + axes, kinds + other))
        assert refusal(path).startswith("tensor '"), there


@pytest.mark.parametrize("name", NAMES)
def test_counts_that_are_all_too_large_are_refused_at_once(tmp_path: Path, name: str) -> None:
    architecture, keys, tensors = parts(name)
    large = {key: 1 << 24 if type(value) is int else value for key, value in keys.items()}
    said = refusal(write_parts(tmp_path / "model.gguf", architecture, large, {"token_embd.weight": np.ones((4, 4))}))
    assert said.startswith(f"{architecture}.")
    for key in keys:
        if type(keys[key]) is int:
            refusal(write_parts(tmp_path / "model.gguf", architecture, keys | {key: 1 << 24}, tensors))
