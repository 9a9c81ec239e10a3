"""The `llama` architecture of GGUF in Hugging Face's words, Mistral and Mixtral with it, and its kin `smollm3`.

`gguf_checkpoint.py` asks it what a file's settings mean and where each tensor is.

INVARIANT: a query or key row is where Hugging Face has it, a head's first half of rotary pairs before its second,
although these two architectures interleave them.

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
from asyncpage.weights.gguf_rope import (
    DIVISORS,
    LONG_DIVISORS,
    SHORT_DIVISORS,
    rope_scaling,
    rope_scaling_with_divisors,
    rope_theta,
)
from asyncpage.weights.gguf_source import Source
from asyncpage.weights.gguf_tensors import Tensors

_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_NO_ROPE_INTERVAL = 4  # of SmolLM3's layers, the last of each four; no key says it


def llama_config(file: GGUFFile) -> dict[str, Any]:
    """Errors: `FormatError` naming the key, as for every translation of settings."""
    keys = Keys(file, "llama")
    has_experts = keys.count("expert_count", default=0, least=0) > 0
    window = keys.count("attention.sliding_window", default=0, least=0)
    if has_experts:
        model_type, architecture = "mixtral", "MixtralForCausalLM"
        keys.refuse_others("expert_count", "expert_used_count", "attention.sliding_window")
        keys.need("expert_weights_norm", True)
    else:
        # A file does not say which of the two it was; without a window they compute the same.
        model_type, architecture = ("mistral", "MistralForCausalLM") if window else ("llama", "LlamaForCausalLM")
        keys.refuse_others("attention.sliding_window")
    config = common_config(file, keys, model_type, architecture)
    config |= head_config(keys, config)
    config["hidden_act"] = "silu"
    config["rope_theta"] = rope_theta(keys)
    config["rope_scaling"] = rope_scaling_with_divisors(file, keys, config["head_dim"] // 2)
    if has_experts or window:
        config["sliding_window"] = window or None
    else:
        config |= _biases(file)
    if has_experts:
        experts = expert_counts(keys, config["num_hidden_layers"])
        config["num_local_experts"], config["num_experts_per_tok"] = experts
    return config


def llama_sources(config: Config, file: GGUFFile) -> dict[str, Source]:
    """Hugging Face name -> source of every tensor the settings call for, each of them checked against the file.

    Errors: `FormatError` naming the tensor that is missing, has another shape, or that nothing here reads.
    """
    is_longrope = Keys(file, "llama").get("rope.scaling.type") == "longrope"
    return _sources(config, Tensors(file, "llama"), (LONG_DIVISORS, SHORT_DIVISORS) if is_longrope else (DIVISORS,))


def smollm3_config(file: GGUFFile) -> dict[str, Any]:
    keys = Keys(file, "smollm3")
    keys.refuse_others()
    config = common_config(file, keys, "smollm3", "SmolLM3ForCausalLM")
    return config | head_config(keys, config) | _biases(file) | {
        "hidden_act": "silu",
        "rope_theta": rope_theta(keys),
        "rope_scaling": rope_scaling(keys),
        "no_rope_layer_interval": _NO_ROPE_INTERVAL,
        "no_rope_layers": [int((layer + 1) % _NO_ROPE_INTERVAL != 0) for layer in range(config["num_hidden_layers"])],
        "use_sliding_window": False,
        "sliding_window": None,
    }  # fmt: skip


def smollm3_sources(config: Config, file: GGUFFile) -> dict[str, Source]:
    return _sources(config, Tensors(file, "smollm3"), ())


def _biases(file: GGUFFile) -> dict[str, bool]:
    return {"attention_bias": has_attention_biases(file), "mlp_bias": "blk.0.ffn_down.bias" in file.tensors}


def _sources(config: Config, tensors: Tensors, not_weights: tuple[str, ...]) -> dict[str, Source]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    is_biased = config.get("attention_bias", False)
    add_ends(tensors, config)
    for layer in range(config["num_hidden_layers"]):
        add_norms(tensors, layer, hidden, _NORMS)
        add_attention(tensors, config, layer, is_interleaved=True, is_qkv_biased=is_biased, is_output_biased=is_biased)
        here, there = f"model.layers.{layer}", f"blk.{layer}"
        if experts := config.get("num_local_experts"):
            tensors.add(f"{here}.block_sparse_moe.gate.weight", f"{there}.ffn_gate_inp.weight", experts, hidden)
            add_experts(
                tensors, f"{here}.block_sparse_moe.experts", there,
                experts=experts, hidden=hidden, inner=inner, names={"gate": "w1", "up": "w3", "down": "w2"},
            )  # fmt: skip
        else:
            biased = config.get("mlp_bias", False)
            add_feed_forward(tensors, f"{here}.mlp", there, hidden, inner, is_biased=biased)
    return tensors.finish(*not_weights)
