"""Writes a transformers model as GGUF the way llama.cpp's converters do, by the `gguf` package's map of names.

It goes the way there; the code under test goes the way back. Nothing here is shared with it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from gguf import quants as gguf_quants
from safetensors.numpy import load_file
from transformers import PreTrainedModel

from tests.weights.gguf_key_conversion import settings

Tensors = dict[str, np.ndarray]

ARCHITECTURES = {
    "mistral": "llama", "mixtral": "llama", "gemma3_text": "gemma3", "qwen3_moe": "qwen3moe",
    "deepseek_v2": "deepseek2",
}  # fmt: skip
INTERLEAVED = ("llama", "smollm3")
GEMMAS = ("gemma2", "gemma3")
EXPERT_PRODUCTS = {"w1": "gate", "w2": "down", "w3": "up", "gate_proj": "gate", "down_proj": "down", "up_proj": "up"}


@dataclass(frozen=True)
class Options:
    """`keys`: more settings of the architecture, None takes one out. `add`, `drop`: tensors by the file's names.

    `experts`: stacked, fused (gate with up) or split. `is_qkv_fused`, `is_kv_split`: see the converters.
    """

    architecture: str | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    add: Mapping[str, np.ndarray] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    dtype: type | GGMLQuantizationType = np.float32
    experts: str = "stacked"
    is_qkv_fused: bool = False
    is_kv_split: bool = True


def published_tensors(model: PreTrainedModel) -> Tensors:
    """Names and values as `save_pretrained` publishes them: an expert's tensors each by itself."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def write_gguf(model: PreTrainedModel, path: Path, options: Options) -> Path:
    config = model.config
    name = options.architecture or ARCHITECTURES.get(config.model_type, config.model_type)
    tensors = dict(converted(model, options))
    if options.is_qkv_fused:
        join_qkv(tensors, config.num_hidden_layers)
    tensors = {there: values for there, values in (tensors | options.add).items() if there not in options.drop}
    return write_parts(path, name, settings(config, options.is_kv_split) | dict(options.keys), tensors, options.dtype)


def write_parts(
    path: Path,
    architecture: str,
    keys: Mapping[str, Any],
    tensors: Tensors,
    dtype: type | GGMLQuantizationType = np.float32,
) -> Path:
    """`keys` without the architecture before them; 97 tokens are called by their numbers."""
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    for key, value in keys.items():
        write_setting(writer, f"{architecture}.{key}", value)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_token_list([f"{token}" for token in range(97)])
    for there, values in tensors.items():
        write_tensor(writer, there, np.ascontiguousarray(values), dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_setting(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            pass
        case bool():
            writer.add_bool(key, value)
        case str():
            writer.add_string(key, value)
        case float():
            writer.add_float32(key, value)
        case list():
            writer.add_array(key, value)
        case _:
            writer.add_uint32(key, value)


def write_tensor(writer: GGUFWriter, name: str, values: np.ndarray, dtype: type | GGMLQuantizationType) -> None:
    if values.ndim == 1:
        writer.add_tensor(name, values.astype(np.float32))
    elif isinstance(dtype, GGMLQuantizationType):
        writer.add_tensor(name, gguf_quants.quantize(values, dtype), raw_dtype=dtype)
    else:
        writer.add_tensor(name, values.astype(dtype))


def converted(model: PreTrainedModel, options: Options) -> Iterator[tuple[str, np.ndarray]]:
    """The file's name and values of every tensor."""
    config = model.config
    architecture = ARCHITECTURES.get(config.model_type, config.model_type)
    arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(arch, config.num_hidden_layers)
    tensors = stacked(published_tensors(model)) if options.experts != "split" else published_tensors(model)
    if options.experts == "fused":
        tensors = dict(fused(tensors))
    for here, values in tensors.items():
        stem, _, kind = here.rpartition(".")
        if architecture in INTERLEAVED:
            values = interleaved_where_turned(here, values, config)
        if architecture in GEMMAS and here.endswith("norm.weight"):
            values = values + np.float32(1)
        if here.endswith("kv_b_proj.weight") and options.is_kv_split:
            yield from split_kv(names, stem, values, config)
        elif (there := gguf_name(names, stem)) is not None:
            yield f"{there}.{kind}", values
        else:
            raise AssertionError(f"no name for {here}")
    rope = config.rope_parameters
    if rope.get("rope_type") == "longrope":
        yield "rope_factors_long.weight", np.array(rope["long_factor"], np.float32)
        yield "rope_factors_short.weight", np.array(rope["short_factor"], np.float32)


def gguf_name(names: Any, stem: str) -> str | None:
    parts = stem.split(".")
    if "experts" in parts and parts[parts.index("experts") + 1].isdigit():  # as old converters named each of them
        return f"blk.{parts[2]}.ffn_{EXPERT_PRODUCTS[parts[-1]]}.{parts[-2]}"
    if stem.endswith("_exps"):
        return stem
    return names.get_name(stem)  # type: ignore[no-any-return]


def stacked(tensors: Tensors) -> Tensors:
    """The same with the experts of a layer as one tensor a product, by the file's name."""
    result, stacks = {}, {}
    for here, values in tensors.items():
        parts = here.split(".")
        if "experts" in parts:
            stacks.setdefault(f"blk.{parts[2]}.ffn_{EXPERT_PRODUCTS[parts[-2]]}_exps.weight", {})[int(parts[-3])] = (
                values
            )
        else:
            result[here] = values
    return result | {name: np.stack([stack[at] for at in sorted(stack)]) for name, stack in stacks.items()}


def fused(tensors: Tensors) -> Iterator[tuple[str, np.ndarray]]:
    for name, values in tensors.items():
        if "ffn_gate_exps" in name:
            both = np.concatenate([values, tensors[name.replace("gate", "up")]], axis=1)
            yield name.replace("ffn_gate_exps", "ffn_gate_up_exps"), both
        elif "ffn_up_exps" not in name:
            yield name, values


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """(head, half, pair) becomes (head, pair, half)."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def interleaved_where_turned(here: str, values: np.ndarray, config: Any) -> np.ndarray:
    for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
        if f"self_attn.{part}." in here:
            return interleaved(values, heads)
    return values


def join_qkv(tensors: Tensors, layers: int) -> None:
    for layer in range(layers):
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"blk.{layer}.attn_{part}.{kind}", None) for part in "qkv"]
            if parts[0] is not None:
                tensors[f"blk.{layer}.attn_qkv.{kind}"] = np.concatenate(parts)


def split_kv(names: Any, stem: str, values: np.ndarray, config: Any) -> Iterator[tuple[str, np.ndarray]]:
    heads, plain = config.num_attention_heads, config.qk_nope_head_dim
    by_head = values.reshape(heads, -1, values.shape[-1])
    yield f"{names.get_name(stem.replace('kv_b', 'k_b'))}.weight", by_head[:, :plain].swapaxes(1, 2)
    yield f"{names.get_name(stem.replace('kv_b', 'v_b'))}.weight", by_head[:, plain:]
