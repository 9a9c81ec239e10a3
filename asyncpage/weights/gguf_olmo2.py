"""The `olmo2` architecture of GGUF in Hugging Face's words: OLMo 2, whose norms come after each part.

`gguf_checkpoint.py` asks it what a file's settings mean and where each tensor is; see `gguf_llama.py` for the errors.

INVARIANT: a setting that changes the model's arithmetic and that is not translated here is refused, never ignored;
the window of OLMo 3, which has the same architecture in GGUF, is one.

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
    head_config,
)
from asyncpage.weights.gguf_keys import Keys
from asyncpage.weights.gguf_rope import rope_scaling, rope_theta
from asyncpage.weights.gguf_source import Source
from asyncpage.weights.gguf_tensors import Tensors

_NORMS = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}


def olmo2_config(file: GGUFFile) -> dict[str, Any]:
    keys = Keys(file, "olmo2")
    keys.refuse_others()
    config = common_config(file, keys, "olmo2", "Olmo2ForCausalLM")
    return config | head_config(keys, config) | {
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_theta": rope_theta(keys),
        "rope_scaling": rope_scaling(keys),
    }  # fmt: skip


def olmo2_sources(config: Config, file: GGUFFile) -> dict[str, Source]:
    tensors = Tensors(file, "olmo2")
    hidden, size = config["hidden_size"], config["head_dim"]
    add_ends(tensors, config)
    for layer in range(config["num_hidden_layers"]):
        add_norms(tensors, layer, hidden, _NORMS)
        # Queries and keys are normed over all heads at once.
        add_norms(tensors, layer, config["num_attention_heads"] * size, {"self_attn.q_norm": "attn_q_norm"})
        add_norms(tensors, layer, config["num_key_value_heads"] * size, {"self_attn.k_norm": "attn_k_norm"})
        add_attention(tensors, config, layer)
        add_feed_forward(tensors, f"model.layers.{layer}.mlp", f"blk.{layer}", hidden, config["intermediate_size"])
    return tensors.finish()
