"""A model's settings brought to one spelling and checked, before anything is built from them.

Both kinds of checkpoint send their settings through it.

INVARIANT: what it returns has every number that it names positive, finite and small enough to count with, and
one spelling of rotary scaling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from asyncpage.errors import FormatError

MAX_COUNT = 1 << 24  # of anything a model has: rows, tokens, heads

_COUNTS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings",
)  # fmt: skip
_NUMBERS = ("rms_norm_eps", "rope_theta", "layer_norm_eps")
_FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window")

# What Hugging Face's own class for the family takes where its config.json is silent.
_LLAMA_DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
}


def settle(found: Mapping[str, Any], file: str) -> dict[str, Any]:
    """`found` with rotary settings in one spelling, derived counts filled in, and every number checked.

    Errors: `FormatError` naming `file` and the field.
    """
    config = dict(found)
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise FormatError(file, "model_type", "is not there; is this the config.json of a language model?")
    _refuse_quantisation(config, file)
    if model_type == "llama":
        config = {**_LLAMA_DEFAULTS, "architectures": ["LlamaForCausalLM"], **config}
    _settle_rotary(config, file)
    for name in _COUNTS:
        _check_count(config, name, file)
    if config.get("num_attention_heads") is not None:
        heads = config["num_attention_heads"]
        if config.get("num_key_value_heads") is None:
            config["num_key_value_heads"] = heads
        if config.get("head_dim") is None and config.get("hidden_size") is not None:
            if config["hidden_size"] % heads:
                reason = f"{heads} do not divide the hidden_size {config['hidden_size']}, and no head_dim is given"
                raise FormatError(file, "num_attention_heads", reason)
            config["head_dim"] = config["hidden_size"] // heads
        if heads % config["num_key_value_heads"]:
            reason = f"{config['num_key_value_heads']} do not divide the {heads} attention heads"
            raise FormatError(file, "num_key_value_heads", reason)
    for name in _NUMBERS:
        value = config.get(name)
        if value is not None and not _is_positive(value):
            raise FormatError(file, name, f"found {value!r}, a positive number is needed")
    for name in _FLAGS:
        if config.get(name) is not None and not isinstance(config[name], bool):
            raise FormatError(file, name, f"found {config[name]!r}, true or false is needed")
    return config


def _refuse_quantisation(config: Mapping[str, Any], file: str) -> None:
    quantisation = config.get("quantization_config")
    if quantisation is not None:
        method = quantisation.get("quant_method", "unknown") if isinstance(quantisation, dict) else "unknown"
        reason = f"method {str(method)[:100]!r} is not supported; use a float checkpoint, or a GGUF of this model"
        raise FormatError(file, "quantization_config", reason)


def _settle_rotary(config: dict[str, Any], file: str) -> None:
    """Fill `rope_theta` and `rope_scaling` from either of the two spellings Hugging Face has used."""
    parameters = config.pop("rope_parameters", None)
    scaling = config.get("rope_scaling")
    if parameters is not None:
        if not isinstance(parameters, dict):
            raise FormatError(file, "rope_parameters", "is not an object")
        if any(isinstance(value, dict) for value in parameters.values()):
            config["rope_parameters"] = parameters  # one object a kind of layer: the family's own affair
            return
        scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
        if "rope_theta" in parameters:
            config["rope_theta"] = parameters["rope_theta"]
        if "partial_rotary_factor" in scaling:
            config["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
    if config.get("rope_theta") is None:
        config["rope_theta"] = 10000.0  # the value of the paper, and of every family that leaves it out
    config["rope_scaling"] = None if scaling is None else _one_spelling(scaling, file)


def _one_spelling(scaling: Any, file: str) -> dict[str, Any] | None:
    if not isinstance(scaling, dict):
        raise FormatError(file, "rope_scaling", "is not an object")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if not isinstance(kind, str):
        raise FormatError(file, "rope_scaling", f"has the rope_type {kind!r}, a text is needed")
    if kind == "default":
        return None
    rest = {key: value for key, value in scaling.items() if key not in ("type", "rope_type")}
    return {"rope_type": kind, **rest}


def _check_count(config: Mapping[str, Any], name: str, file: str) -> None:
    value = config.get(name)
    if value is None and (name in ("num_key_value_heads", "head_dim") or config["model_type"] != "llama"):
        return
    if type(value) is not int or not 1 <= value <= MAX_COUNT:
        raise FormatError(file, name, f"found {str(value)[:100]}, an integer from 1 to {MAX_COUNT} is needed")


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
