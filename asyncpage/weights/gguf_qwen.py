"""The `qwen2`, `qwen3` and `qwen3moe` architectures of GGUF in Hugging Face's words.

`gguf_checkpoint.py` asks it what a file's settings mean and where each tensor is; see `gguf_llama.py` for the errors.

INVARIANT: a setting that changes the model's arithmetic and that is not translated here is refused, never ignored.

Source: the key names of the GGUF specification, and the meaning llama.cpp's loader gives them.
"""

from __future__ import annotations

from typing import Any

from asyncpage.formats.gguf import GGUFFile
from asyncpage.weights.gguf_decoder import (
    Config,
    add_attention,
    add_ends,
    add_feed_forward,
    add_norms,
    common_config,
    has_attention_biases,
    head_config,
)
from asyncpage.weights.gguf_experts import add_experts, expert_counts
from asyncpage.weights.gguf_keys import Keys
from asyncpage.weights.gguf_rope import rope_scaling, rope_theta
from asyncpage.weights.gguf_source import Source
from asyncpage.weights.gguf_tensors import Tensors

_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_PRODUCTS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def qwen2_config(file: GGUFFile) -> dict[str, Any]:
    keys = Keys(file, "qwen2")
    keys.refuse_others()
    return _config(file, keys, "qwen2", "Qwen2ForCausalLM")


def qwen2_sources(config: Config, file: GGUFFile) -> dict[str, Source]:
    tensors = Tensors(file, "qwen2")
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    add_ends(tensors, config)
    for layer in range(config["num_hidden_layers"]):
        add_norms(tensors, layer, hidden, _NORMS)
        add_attention(tensors, config, layer, is_qkv_biased=True)
        add_feed_forward(tensors, f"model.layers.{layer}.mlp", f"blk.{layer}", hidden, inner)
    return tensors.finish()


def qwen3_config(file: GGUFFile) -> dict[str, Any]:
    keys = Keys(file, "qwen3")
    keys.refuse_others()
    return _config(file, keys, "qwen3", "Qwen3ForCausalLM") | {"attention_bias": has_attention_biases(file)}


def qwen3_sources(config: Config, file: GGUFFile) -> dict[str, Source]:
    tensors = Tensors(file, "qwen3")
    for layer in _add_qwen3(tensors, config):
        here, there = f"model.layers.{layer}.mlp", f"blk.{layer}"
        add_feed_forward(tensors, here, there, config["hidden_size"], config["intermediate_size"])
    return tensors.finish()


def qwen3moe_config(file: GGUFFile) -> dict[str, Any]:
    keys = Keys(file, "qwen3moe")
    keys.refuse_others("expert_count", "expert_used_count", "expert_feed_forward_length")
    keys.need("expert_weights_norm", True)
    config = _config(file, keys, "qwen3_moe", "Qwen3MoeForCausalLM")
    experts, used = expert_counts(keys, config["num_hidden_layers"])
    return config | {
        "attention_bias": has_attention_biases(file),
        "num_experts": experts,
        "num_experts_per_tok": used,
        "moe_intermediate_size": keys.count("expert_feed_forward_length", default=config["intermediate_size"] // used),
        "norm_topk_prob": True,  # what the architecture does; no key says it
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def qwen3moe_sources(config: Config, file: GGUFFile) -> dict[str, Source]:
    tensors = Tensors(file, "qwen3moe")
    hidden, inner, experts = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]
    for layer in _add_qwen3(tensors, config):
        here, there = f"model.layers.{layer}.mlp", f"blk.{layer}"
        tensors.add(f"{here}.gate.weight", f"{there}.ffn_gate_inp.weight", experts, hidden)
        add_experts(
            tensors, f"{here}.experts", there, experts=experts, hidden=hidden, inner=inner, names=_PRODUCTS
        )  # fmt: skip
    return tensors.finish()


def _config(file: GGUFFile, keys: Keys, model_type: str, architecture: str) -> dict[str, Any]:
    config = common_config(file, keys, model_type, architecture)
    return config | head_config(keys, config) | {
        "hidden_act": "silu",
        "rope_theta": rope_theta(keys),
        "rope_scaling": rope_scaling(keys),
        "use_sliding_window": False,
        "sliding_window": None,
    }  # fmt: skip


def _add_qwen3(tensors: Tensors, config: Config) -> range:
    """All but the feed-forward parts, of all layers; returned are the layers."""
    is_biased = config["attention_bias"]
    layers = range(config["num_hidden_layers"])
    add_ends(tensors, config)
    for layer in layers:
        add_norms(tensors, layer, config["hidden_size"], _NORMS)
        add_norms(tensors, layer, config["head_dim"], _HEAD_NORMS)
        add_attention(tensors, config, layer, is_qkv_biased=is_biased, is_output_biased=is_biased)
    return layers
