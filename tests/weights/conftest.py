"""Tiny random Llamas by transformers, and the GGUF files that llama.cpp's converter would make of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import LlamaConfig, LlamaForCausalLM

WriteGGUF = Callable[..., Path]

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def tiny_llama(**changes: Any) -> LlamaForCausalLM:
    """A model whose every count differs, and whose head size is not hidden size over heads."""
    settings: dict[str, Any] = {
        "vocab_size": 97, "hidden_size": 36, "intermediate_size": 56, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    }  # fmt: skip
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(**(settings | changes)))
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases are constant when they are new
            parameter.normal_()
    return model


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to query and key rows: (head, half, pair) becomes (head, pair, half)."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGGUF:
    """Writes a model as GGUF. `keys` are more settings of the architecture, `drop` and `add` change its tensors."""

    def write(
        model: LlamaForCausalLM,
        *,
        architecture: str = "llama",
        keys: dict[str, Any] | None = None,
        add: dict[str, np.ndarray] | None = None,
        drop: tuple[str, ...] = (),
        dtype: type = np.float32,
    ) -> Path:
        config = model.config
        path = tmp_path / "model.gguf"
        writer = GGUFWriter(path, architecture)
        head_dim = config.head_dim
        values: dict[str, Any] = {
            "block_count": config.num_hidden_layers, "context_length": config.max_position_embeddings,
            "embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size,
            "attention.head_count": config.num_attention_heads,
            "attention.head_count_kv": config.num_key_value_heads,
            "attention.key_length": head_dim, "attention.value_length": head_dim, "rope.dimension_count": head_dim,
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps, "rope.freq_base": 500000.0,
            "vocab_size": config.vocab_size,
        } | (keys or {})  # fmt: skip
        for key, value in values.items():
            match value:
                case None:
                    continue
                case bool():
                    writer.add_bool(f"{architecture}.{key}", value)
                case str():
                    writer.add_string(f"{architecture}.{key}", value)
                case float():
                    writer.add_float32(f"{architecture}.{key}", value)
                case list():
                    writer.add_array(f"{architecture}.{key}", value)
                case _:
                    writer.add_uint32(f"{architecture}.{key}", value)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        tensors: dict[str, np.ndarray] = {}
        for name, parameter in model.named_parameters():
            rows = parameter.detach().numpy()
            for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
                if f"self_attn.{part}." in name:
                    rows = interleaved(rows, heads)
            tensors[gguf_name(name)] = rows.astype(dtype if rows.ndim > 1 else np.float32)
        for name, rows in (tensors | (add or {})).items():
            if name not in drop:
                writer.add_tensor(name, np.ascontiguousarray(rows))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def llama() -> Callable[..., LlamaForCausalLM]:
    return tiny_llama
