"""The `llama` architecture of GGUF in Hugging Face's words: settings, tensor names, order of rows.

`gguf_checkpoint.py` asks it what a file's settings mean and where each tensor is.

INVARIANT: a setting that changes the model's arithmetic and that is not translated here is refused, never ignored.

Source: the key names of the GGUF specification, and the meaning llama.cpp's loader gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncpage.errors import FormatError
from asyncpage.formats.gguf import GGUFFile
from asyncpage.weights.gguf_keys import Keys

# Settings that other families of this architecture's code have, and the value that leaves a Llama alone.
_NEUTRAL: Mapping[str, Any] = {
    "expert_count": 0,
    "logit_scale": 1.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "attention.scale": 0.0,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.causal": True,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "use_parallel_residual": False,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}
_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a tensor is in the file: its name there, its shape, and its heads when their rows are interleaved."""

    name: str
    shape: tuple[int, ...]
    interleaved_heads: int = 0


def llama_config(file: GGUFFile) -> dict[str, Any]:
    """The file's settings as a `config.json` would say them. Errors: `FormatError` naming the key."""
    keys = Keys(file, "llama")
    for name, neutral in _NEUTRAL.items():
        value = keys.get(name, neutral)
        if value != neutral:
            raise keys.error(name, f"found {value!r}, only {neutral!r} is supported for this architecture")
    heads = keys.count("attention.head_count")
    hidden = keys.count("embedding_length")
    head_dim = keys.count("attention.key_length", default=hidden // heads)
    if head_dim % 2:
        raise keys.error("attention.key_length", f"found {head_dim}, rotary embedding needs an even head size")
    for name in ("rope.dimension_count", "attention.value_length"):
        if keys.count(name, default=head_dim) != head_dim:
            raise keys.error(name, f"found {keys.get(name)!r}, only the head size {head_dim} is supported")
    tensors = file.tensors
    embedding = tensors.get("token_embd.weight")
    config: dict[str, Any] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": keys.count("vocab_size", default=embedding.shape[0] if embedding else None),
        "hidden_size": hidden,
        "intermediate_size": keys.count("feed_forward_length"),
        "num_hidden_layers": keys.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.count("attention.head_count_kv", default=heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": keys.count("context_length"),
        "rope_theta": keys.number("rope.freq_base", default=10000.0),
        "rope_scaling": _rope_scaling(file, keys, head_dim),
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        "sliding_window": keys.get("attention.sliding_window") or None,
    }
    for name in ("bos", "eos", "pad"):
        key = f"tokenizer.ggml.{'padding' if name == 'pad' else name}_token_id"
        if key in file.metadata:
            config[f"{name}_token_id"] = file.metadata[key]
    return config


def llama_sources(config: Mapping[str, Any], file: GGUFFile) -> dict[str, Source]:
    """Hugging Face name -> source of every tensor the settings call for, each of them checked against the file.

    Errors: `FormatError` naming the tensor that is missing, has another shape, or that nothing here reads.
    """
    layers = config["num_hidden_layers"]
    if layers > len(file.tensors):  # before a list is made that the file could make endless
        reason = f"{layers} layers need more tensors than the {len(file.tensors)} in the file"
        raise FormatError(str(file.path), "llama.block_count", reason)
    sources = _expected(config)
    read = {source.name for source in sources.values()}
    for source in sources.values():
        info = file.tensors.get(source.name)
        if info is None:
            raise FormatError(str(file.path), f"tensor {source.name!r}", "is missing")
        if info.shape != source.shape:
            reason = f"has shape {info.shape}, the file's settings call for {source.shape}"
            raise FormatError(str(file.path), f"tensor {source.name!r}", reason)
    for name in file.tensors:
        if name not in read and name not in _ROPE_TENSORS:
            reason = "is not part of a Llama as the file's settings describe it"
            raise FormatError(str(file.path), f"tensor {name!r}", reason)
    return sources


def _expected(config: Mapping[str, Any]) -> dict[str, Source]:
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    sources = {
        "model.embed_tokens.weight": Source("token_embd.weight", (vocab, hidden)),
        "model.norm.weight": Source("output_norm.weight", (hidden,)),
    }
    if not config["tie_word_embeddings"]:
        sources["lm_head.weight"] = Source("output.weight", (vocab, hidden))
    products = (  # here, there, rows, columns, interleaved heads, whether it has a bias
        ("self_attn.q_proj", "attn_q", heads * size, hidden, heads, config["attention_bias"]),
        ("self_attn.k_proj", "attn_k", kv_heads * size, hidden, kv_heads, config["attention_bias"]),
        ("self_attn.v_proj", "attn_v", kv_heads * size, hidden, 0, config["attention_bias"]),
        ("self_attn.o_proj", "attn_output", hidden, heads * size, 0, config["attention_bias"]),
        ("mlp.gate_proj", "ffn_gate", inner, hidden, 0, config["mlp_bias"]),
        ("mlp.up_proj", "ffn_up", inner, hidden, 0, config["mlp_bias"]),
        ("mlp.down_proj", "ffn_down", hidden, inner, 0, config["mlp_bias"]),
    )
    norms = (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"))
    for layer in range(config["num_hidden_layers"]):
        here, there = f"model.layers.{layer}", f"blk.{layer}"
        for name, ggml_name in norms:
            sources[f"{here}.{name}.weight"] = Source(f"{there}.{ggml_name}.weight", (hidden,))
        for name, ggml_name, rows, columns, interleaved, has_bias in products:
            sources[f"{here}.{name}.weight"] = Source(f"{there}.{ggml_name}.weight", (rows, columns), interleaved)
            if has_bias:
                sources[f"{here}.{name}.bias"] = Source(f"{there}.{ggml_name}.bias", (rows,), interleaved)
    return sources


def _rope_scaling(file: GGUFFile, keys: Keys, head_dim: int) -> dict[str, Any] | None:
    """The rotary scaling, in the words of `rope_scaling`, or None."""
    factor = keys.number("rope.scaling.factor", default=keys.number("rope.scale_linear", default=1.0))
    kind = keys.get("rope.scaling.type", "linear")
    original = keys.count("rope.scaling.original_context_length", default=keys.count("context_length"))
    if kind == "longrope":
        return {
            "rope_type": "longrope",
            "long_factor": _factors(file, "rope_factors_long.weight", head_dim),
            "short_factor": _factors(file, "rope_factors_short.weight", head_dim),
            "attention_factor": keys.number("rope.scaling.attn_factor", default=1.0),
            "original_max_position_embeddings": original,
        }
    if kind not in ("none", "linear", "yarn"):
        raise keys.error("rope.scaling.type", f"found {kind!r}, supported are none, linear, yarn and longrope")
    if kind == "none":
        factor = 1.0
    if "rope_freqs.weight" in file.tensors:
        if factor != 1.0:
            raise keys.error("rope.scaling.type", f"{kind} of factor {factor} beside rope_freqs is not supported")
        factors = _factors(file, "rope_freqs.weight", head_dim)
        if set(factors) == {1.0}:
            return None
        # One divisor a frequency is what longrope means; both lists are equal, so the length never matters.
        return {
            "rope_type": "longrope",
            "long_factor": factors,
            "short_factor": factors,
            "attention_factor": 1.0,
            "original_max_position_embeddings": original,
        }
    if kind == "yarn":
        return _yarn(keys, factor, original)
    return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}


def _yarn(keys: Keys, factor: float, original: int) -> dict[str, Any]:
    # The file's factor multiplies the attention factor of the paper, Hugging Face's replaces it.
    own = keys.number("rope.scaling.yarn_attn_factor", default=keys.number("rope.scaling.attn_factor", default=1.0))
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": keys.number("rope.scaling.yarn_beta_fast", default=32.0),
        "beta_slow": keys.number("rope.scaling.yarn_beta_slow", default=1.0),
    }
    if own != 1.0:
        scaling["attention_factor"] = own * (0.1 * float(np.log(factor)) + 1.0 if factor > 1.0 else 1.0)
    return scaling


def _factors(file: GGUFFile, name: str, head_dim: int) -> list[float]:
    """One positive divisor a rotary frequency: float [head_dim / 2]."""
    info = file.tensors.get(name)
    if info is None:
        raise FormatError(str(file.path), f"tensor {name!r}", "is missing")
    if info.shape != (head_dim // 2,):
        raise FormatError(str(file.path), f"tensor {name!r}", f"has shape {info.shape}, ({head_dim // 2},) is needed")
    factors = file.dequantize(name)
    if not np.all(np.isfinite(factors) & (factors > 0)):
        raise FormatError(str(file.path), f"tensor {name!r}", "has factors that are not positive numbers")
    return [float(factor) for factor in factors]
