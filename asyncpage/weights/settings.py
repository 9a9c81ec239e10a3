"""A model's settings as its files say them, checked before anything is built from them.

Both kinds of checkpoint send their settings through it. What a family takes for a setting that is left out, and which
it obeys, is the family's affair (`models`).

INVARIANT: what it returns is what was given, and every number that it names is positive, finite and small enough to
count with.
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
_NUMBERS = ("rms_norm_eps", "rope_theta", "rope_local_base_freq", "layer_norm_eps")
_FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window")
_OBJECTS = ("rope_scaling", "rope_parameters")


def settle(found: Mapping[str, Any], file: str) -> dict[str, Any]:
    """`found`, checked. Errors: `FormatError` naming `file` and the field."""
    config = dict(found)
    if not isinstance(config.get("model_type"), str):
        raise FormatError(file, "model_type", "is not there; is this the config.json of a language model?")
    named = config.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise FormatError(file, "architectures", f"found {str(named)[:100]}, a list of names is needed")
    for name in _COUNTS:
        value = config.get(name)
        if value is not None and (type(value) is not int or not 1 <= value <= MAX_COUNT):
            raise FormatError(file, name, f"found {str(value)[:100]}, an integer from 1 to {MAX_COUNT} is needed")
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads and kv_heads and heads % kv_heads:
        raise FormatError(file, "num_key_value_heads", f"{kv_heads} do not divide the {heads} attention heads")
    for name in _NUMBERS:
        value = config.get(name)
        if value is not None and not _is_positive(value):
            raise FormatError(file, name, f"found {value!r}, a positive number is needed")
    for name in _FLAGS:
        if config.get(name) is not None and not isinstance(config[name], bool):
            raise FormatError(file, name, f"found {config[name]!r}, true or false is needed")
    for name in _OBJECTS:
        if config.get(name) is not None and not isinstance(config[name], dict):
            raise FormatError(file, name, "is not an object")
    return config


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
