"""What a model of the Llama shape is made of, read from a `config.json`'s vocabulary and checked.

`registry` calls `ModelConfig.parse` before any weight is read.

INVARIANT: a value that would be ignored although it changes the answer is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asyncpage.errors import ModelError
from asyncpage.models.rope import RopeSettings


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes in items; `windows`: per layer, tokens a query sees (itself included), 0 for all."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    max_positions: int
    rope: RopeSettings
    windows: tuple[int, ...]
    tied_head: bool
    attention_bias: bool
    mlp_bias: bool

    @classmethod
    def parse(cls, architecture: str, config: Mapping[str, Any], *, windowed: bool) -> ModelConfig:
        """Read Hugging Face's names; `windowed`: this architecture obeys `sliding_window`.

        Errors: `ModelError` naming the field, what was found and what would do.
        """
        hidden_size = whole(config, "hidden_size")
        q_heads = whole(config, "num_attention_heads")
        kv_heads = whole(config, "num_key_value_heads", q_heads)
        layers = whole(config, "num_hidden_layers")
        max_positions = whole(config, "max_position_embeddings", 2048)
        if q_heads % kv_heads:
            raise ModelError(
                f"config: num_attention_heads ({q_heads}) must be a multiple of num_key_value_heads ({kv_heads})"
            )
        if config.get("head_dim") is None and hidden_size % q_heads:
            raise ModelError(
                f"config: hidden_size ({hidden_size}) is no multiple of num_attention_heads ({q_heads}) "
                "and there is no head_dim"
            )
        head_dim = whole(config, "head_dim", hidden_size // q_heads)
        activation = config.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise ModelError(f"config: hidden_act {activation!r} is not supported by {architecture}; silu is")
        if config.get("quantization_config"):
            method = config["quantization_config"].get("quant_method", "unknown")
            raise ModelError(f"config: weights quantised by {method!r} are not supported; use float weights or a GGUF")
        norm_eps = config.get("rms_norm_eps", 1e-6)
        if not isinstance(norm_eps, float | int) or not 0 <= norm_eps < 1:
            raise ModelError(f"config: rms_norm_eps must be a small positive number, found {norm_eps!r}")
        return cls(
            architecture=architecture,
            vocab_size=whole(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=whole(config, "intermediate_size"),
            layers=layers,
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=float(norm_eps),
            max_positions=max_positions,
            rope=RopeSettings.parse(config, head_dim, max_positions),
            windows=_windows(config, layers, max_positions) if windowed else (0,) * layers,
            tied_head=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
        )


def whole(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A positive whole number of the config. Errors: `ModelError` when it is absent or something else."""
    value = config.get(name)
    if value is None:
        value = default
    if value is None:
        raise ModelError(f"config: {name} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"config: {name} must be a positive whole number, found {value!r}")
    return value


def _windows(config: Mapping[str, Any], layers: int, max_positions: int) -> tuple[int, ...]:
    """Each layer's window: `sliding_window` everywhere, or where `layer_types` says sliding_attention."""
    if config.get("sliding_window") is None:
        return (0,) * layers
    window = whole(config, "sliding_window")
    if window >= max_positions:
        return (0,) * layers  # it hides nothing
    kinds = config.get("layer_types") or ["sliding_attention"] * layers
    if len(kinds) != layers:
        raise ModelError(f"config: layer_types names {len(kinds)} layers, num_hidden_layers is {layers}")
    known = {"sliding_attention": window, "full_attention": 0}
    for kind in kinds:
        if kind not in known:
            raise ModelError(f"config: layer type {kind!r} is not supported; {' and '.join(known)} are")
    return tuple(known[kind] for kind in kinds)
