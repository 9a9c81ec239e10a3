"""Typed reading of one architecture's settings from GGUF metadata.

The translations of architectures ask it for counts and numbers; it sends to nobody.

INVARIANT: what it returns is of the type asked for and in range; what is not is a `FormatError` naming the key.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from asyncpage.errors import FormatError
from asyncpage.formats.gguf import GGUFFile
from asyncpage.weights.settings import MAX_COUNT

# Settings that change the arithmetic in one architecture or another, and the values that leave a model alone.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "use_parallel_residual": (False,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_feed_forward_length": (0,),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_chunk_feed_forward_length": (0,),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_weights_scale": (0.0, 1.0),
    "expert_gating_func": (0, 1),  # unsaid, softmax
    "leading_dense_block_count": (0,),
    "interleave_moe_layer_step": (0, 1),
    "moe_every_n_layers": (0, 1),
    "nextn_predict_layers": (0,),
    "n_deepstack_layers": (0,),
    "swiglu_clamp_exp": (0.0,),
    "swiglu_clamp_shexp": (0.0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "attn_logit_softcapping": (0.0,),
    "router_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "attention.causal": (True,),
    "attention.scale": (0.0,),
    "attention.output_scale": (0.0, 1.0),
    "attention.temperature_scale": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.q_lora_rank": (0,),
    "attention.kv_lora_rank": (0,),
    "attention.key_length_mla": (0,),
    "attention.value_length_mla": (0,),
    "attention.sliding_window": (0,),
    "attention.shared_kv_layers": (0,),
    "rope.dimension_sections": (0,),
    "rope.scaling.alpha": (0.0,),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}


class Keys:
    """The keys of `file` that begin with `architecture` and a dot; methods take what comes after it."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self._file = file
        self.architecture = architecture

    def get(self, name: str, default: Any = None) -> Any:
        return self._file.metadata.get(f"{self.architecture}.{name}", default)

    def refuse_others(self, *translated: str) -> None:
        """Errors: `FormatError` for a key that changes the arithmetic and is none of the `translated` ones."""
        for name, neutral in _NEUTRAL.items():
            if name not in translated:
                self.need(name, *neutral)

    def need(self, name: str, *values: Any) -> None:
        """Errors: `FormatError` when the key is there and is none of `values`, nor a list of them."""
        found = self.get(name)
        if found is None:
            return
        allowed = [(type(value) is bool, value) for value in values]  # True equals 1 and is none
        if any((type(item) is bool, item) not in allowed for item in (found if isinstance(found, list) else [found])):
            known = " or ".join(repr(value) for value in values)
            raise self.error(name, f"found {str(found)[:100]}, only {known} is supported for this architecture")

    def count(self, name: str, *, default: int | None = None, least: int = 1, most: int = MAX_COUNT) -> int:
        """An integer from `least` to `most`; a list with one value for each layer counts when they are all equal."""
        value = self.get(name, default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, list):
            raise self.error(name, "differs from layer to layer, which is not supported")
        if value is None:
            raise self.error(name, "is missing")
        if type(value) is not int or not least <= value <= most:
            raise self.error(name, f"found {str(value)[:100]}, an integer from {least} to {most} is needed")
        return value

    def number(self, name: str, *, default: float | None = None) -> float:
        """A positive finite number."""
        value = self.get(name, default)
        if value is None:
            raise self.error(name, "is missing")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value <= 0:
            raise self.error(name, f"found {str(value)[:100]}, a positive number is needed")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"found {str(value)[:100]}, true or false is needed")
        return value

    def text(self, name: str, allowed: Collection[str], *, default: str) -> str:
        value = self.get(name, default)
        if value not in allowed:
            raise self.error(name, f"found {str(value)[:100]!r}, supported are {', '.join(allowed)}")
        return str(value)

    def error(self, name: str, reason: str) -> FormatError:
        return FormatError(str(self._file.path), f"{self.architecture}.{name}", reason)
