"""The `gemma2` and `gemma3` architectures of GGUF in Hugging Face's words.

`gguf_checkpoint.py` asks it what a file's settings mean and where each tensor is; see `gguf_llama.py` for the errors.

INVARIANT: a norm's weight is what Hugging Face stores, the difference from one, although the file has the sum.

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

_NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_PATTERN = "attention.sliding_window_pattern"

# The models of 27B scale attention by hidden size over heads, all others by head size. No key says it; their number
# of layers does.
_LAYERS_27B = {"gemma2": 46, "gemma3": 62}


def gemma2_config(file: GGUFFile) -> dict[str, Any]:
    keys = Keys(file, "gemma2")
    keys.refuse_others("attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window")
    config = _config(file, keys, "gemma2", "Gemma2ForCausalLM")
    theta = rope_theta(keys)
    keys.need("rope.freq_base_swa", theta)
    return config | {
        "attn_logit_softcapping": keys.number("attn_logit_softcapping", default=50.0),
        "final_logit_softcapping": keys.number("final_logit_softcapping", default=30.0),
        "sliding_window": keys.count("attention.sliding_window", default=4096),
        "layer_types": _layer_types(keys, config["num_hidden_layers"], interval=2),
        "rope_theta": theta,
        "rope_scaling": rope_scaling(keys),
    }


def gemma3_config(file: GGUFFile) -> dict[str, Any]:
    keys = Keys(file, "gemma3")
    keys.refuse_others("final_logit_softcapping", "attention.sliding_window")
    config = _config(file, keys, "gemma3_text", "Gemma3ForCausalLM")
    layers, window = config["num_hidden_layers"], keys.count("attention.sliding_window", default=0, least=0)
    has_softcap = keys.get("final_logit_softcapping") not in (None, 0.0)
    local_theta = keys.number("rope.freq_base_swa", default=10000.0)
    return config | {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": keys.number("final_logit_softcapping") if has_softcap else None,
        "sliding_window": window or None,
        "layer_types": _layer_types(keys, layers, interval=6) if window else ["full_attention"] * layers,
        "rope_parameters": {
            "full_attention": {"rope_theta": rope_theta(keys), **(rope_scaling(keys) or {"rope_type": "default"})},
            "sliding_attention": {"rope_theta": local_theta, "rope_type": "default"},
        },
    }


def gemma2_sources(config: Config, file: GGUFFile) -> dict[str, Source]:
    return _sources(config, Tensors(file, "gemma2"), has_head_norms=False)


def gemma3_sources(config: Config, file: GGUFFile) -> dict[str, Source]:
    return _sources(config, Tensors(file, "gemma3"), has_head_norms=True)


def _config(file: GGUFFile, keys: Keys, model_type: str, architecture: str) -> dict[str, Any]:
    config = common_config(file, keys, model_type, architecture)
    config |= head_config(keys, config)
    is_27b = config["num_hidden_layers"] == _LAYERS_27B[keys.architecture]
    scalar = config["hidden_size"] // config["num_attention_heads"] if is_27b else config["head_dim"]
    return config | {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "attention_bias": False,
    }


def _layer_types(keys: Keys, layers: int, *, interval: int) -> list[str]:
    """Which layers slide: as the file lists them, or all but the last of every `interval`."""
    pattern = keys.get(_PATTERN)
    if isinstance(pattern, list):
        if len(pattern) != layers or not all(item in (0, 1) for item in pattern):
            raise keys.error(_PATTERN, f"is no list of true or false for each of the {layers} layers")
        slides = [bool(item) for item in pattern]
    else:
        interval = keys.count(_PATTERN, default=interval)
        slides = [layer % interval < interval - 1 for layer in range(layers)]
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


def _sources(config: Config, tensors: Tensors, *, has_head_norms: bool) -> dict[str, Source]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    add_ends(tensors, config, excess=1.0)
    for layer in range(config["num_hidden_layers"]):
        add_norms(tensors, layer, hidden, _NORMS, excess=1.0)
        if has_head_norms:
            add_norms(tensors, layer, config["head_dim"], _HEAD_NORMS, excess=1.0)
        add_attention(tensors, config, layer)
        add_feed_forward(tensors, f"model.layers.{layer}.mlp", f"blk.{layer}", hidden, inner)
    return tensors.finish()
