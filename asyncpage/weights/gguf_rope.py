"""Rotary settings of GGUF in the words of `rope_theta` and `rope_scaling`.

The translations of architectures ask it; it reads keys, and the divisors that some files keep in a tensor.

INVARIANT: a setting of rotary embedding that the kind at hand has no word for is refused by name.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from asyncpage.errors import FormatError
from asyncpage.formats.gguf import GGUFFile
from asyncpage.weights.gguf_keys import Keys

DIVISORS = "rope_freqs.weight"
LONG_DIVISORS = "rope_factors_long.weight"
SHORT_DIVISORS = "rope_factors_short.weight"

_KINDS = ("none", "linear", "yarn")


def rope_theta(keys: Keys) -> float:
    return keys.number("rope.freq_base", default=10000.0)


def original_context(keys: Keys) -> int:
    """Tokens of context before the rotary embedding was stretched."""
    return keys.count("rope.scaling.original_context_length", default=keys.count("context_length"))


def rope_scaling(keys: Keys) -> dict[str, Any] | None:
    """The scaling of an architecture without divisors in tensors, or None."""
    kind = keys.text("rope.scaling.type", _KINDS, default="linear")
    if kind == "yarn":
        return yarn(keys)
    factor = _factor(keys)
    keys.need("rope.scaling.attn_factor", 1.0)
    return None if kind == "none" or factor == 1.0 else {"rope_type": "linear", "factor": factor}


def rope_scaling_with_divisors(file: GGUFFile, keys: Keys, pairs: int) -> dict[str, Any] | None:
    """The same where `pairs` divisors may lie in tensors of the file."""
    if keys.text("rope.scaling.type", (*_KINDS, "longrope"), default="linear") == "longrope":
        return longrope(file, keys, pairs)
    scaling = rope_scaling(keys)
    if DIVISORS not in file.tensors:
        return scaling
    if scaling is not None:
        kind, factor = scaling["rope_type"], scaling["factor"]
        raise keys.error("rope.scaling.type", f"{kind} of factor {factor} beside rope_freqs is not supported")
    divisors = _divisors(file, DIVISORS, pairs)
    if set(divisors) == {1.0}:
        return None
    # One divisor a frequency is what longrope means; both lists are equal, so the length never matters.
    return {
        "rope_type": "longrope",
        "long_factor": divisors,
        "short_factor": divisors,
        "attention_factor": 1.0,
        "original_max_position_embeddings": original_context(keys),
    }


def longrope(file: GGUFFile, keys: Keys, pairs: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "long_factor": _divisors(file, LONG_DIVISORS, pairs),
        "short_factor": _divisors(file, SHORT_DIVISORS, pairs),
        "attention_factor": keys.number("rope.scaling.attn_factor", default=1.0),
        "original_max_position_embeddings": original_context(keys),
    }


def yarn(keys: Keys) -> dict[str, Any]:
    factor = _factor(keys)
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original_context(keys),
        "beta_fast": keys.number("rope.scaling.yarn_beta_fast", default=32.0),
        "beta_slow": keys.number("rope.scaling.yarn_beta_slow", default=1.0),
    }
    # The one multiplies the attention factor of the paper; the other is config.json's, which replaces it.
    multiplier = keys.number("rope.scaling.attn_factor", default=1.0)
    if keys.get("rope.scaling.yarn_attn_factor") is not None:
        scaling["attention_factor"] = multiplier * keys.number("rope.scaling.yarn_attn_factor")
    elif multiplier != 1.0:
        scaling["attention_factor"] = multiplier * (0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0)
    return scaling


def _factor(keys: Keys) -> float:
    return keys.number("rope.scaling.factor", default=keys.number("rope.scale_linear", default=1.0))


def _divisors(file: GGUFFile, name: str, pairs: int) -> list[float]:
    """One positive divisor a rotary frequency."""
    info = file.tensors.get(name)
    if info is None:
        raise FormatError(str(file.path), f"tensor {name!r}", "is missing")
    if info.shape != (pairs,):
        raise FormatError(str(file.path), f"tensor {name!r}", f"has shape {info.shape}, ({pairs},) is needed")
    divisors = file.dequantize(name)
    if not np.all(np.isfinite(divisors) & (divisors > 0)):
        raise FormatError(str(file.path), f"tensor {name!r}", "has factors that are not positive numbers")
    return [float(divisor) for divisor in divisors]
