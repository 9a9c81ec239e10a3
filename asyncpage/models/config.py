"""Reads a `config.json`'s vocabulary: its fields one by one, and the sizes that all decoders have.

Families call it before any weight is read, with their defaults already under what the file says.

INVARIANT: a field of the wrong kind is refused by name, with what was found and what would do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncpage.errors import ModelError
from asyncpage.models.layers import ACTIVATIONS, RowMap

Config = Mapping[str, Any]

MAX_WIDTH = 1 << 24  # of all heads together, and of a router, in items
MAX_EXPERTS = 1 << 12  # of a layer: each is put together before a tensor is looked for


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """Sizes in items, and what else is the same in every layer of a decoder."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    max_positions: int
    is_tied: bool
    activation: RowMap

    @classmethod
    def parse(cls, config: Config, *, activation: str = "hidden_act") -> DecoderSizes:
        """Read Hugging Face's names; `activation`: the field that names the feed-forward's.

        Errors: `ModelError` naming the field, what was found and what would do.
        """
        refuse_unless(config, is_causal=(True,))
        hidden_size = whole(config, "hidden_size")
        q_heads = whole(config, "num_attention_heads")
        kv_heads = whole(config, "num_key_value_heads", q_heads)
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
        if q_heads * head_dim > MAX_WIDTH:
            raise ModelError(f"config: {q_heads} heads of {head_dim} items are more than any model has")
        function = str(config.get(activation))
        if function not in ACTIVATIONS:
            raise ModelError(f"config: {activation} {function!r} is not supported; {', '.join(ACTIVATIONS)} are")
        norm_eps = config.get("rms_norm_eps")
        if isinstance(norm_eps, bool) or not isinstance(norm_eps, float | int) or not 0 <= norm_eps < 1:
            raise ModelError(f"config: rms_norm_eps must be a small positive number, found {norm_eps!r}")
        return cls(
            vocab_size=whole(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=whole(config, "intermediate_size"),
            layers=whole(config, "num_hidden_layers"),
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=float(norm_eps),
            max_positions=whole(config, "max_position_embeddings"),
            is_tied=flag(config, "tie_word_embeddings"),
            activation=ACTIVATIONS[function],
        )


def whole(config: Config, name: str, default: int | None = None, *, least: int = 1) -> int:
    """A whole number of the config, `least` or more. Errors: `ModelError` when it is absent or something else."""
    value = config.get(name)
    if value is None:
        value = default
    if value is None:
        raise ModelError(f"config: {name} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        kind = "a positive whole number" if least else "a whole number"
        raise ModelError(f"config: {name} must be {kind}, found {value!r}")
    return value


def routed(config: Config, experts: str) -> tuple[int, int]:
    """How many experts a layer has (the field called `experts`), and how many of them a row is sent to.

    Errors: `ModelError` when it asks for more than there are, or there are more than any model has.
    """
    count, top_k = whole(config, experts), whole(config, "num_experts_per_tok")
    if count > MAX_EXPERTS or count * whole(config, "hidden_size") > MAX_WIDTH:
        raise ModelError(
            f"config: {experts} ({count}) of hidden_size {config['hidden_size']} are more than any model has"
        )
    if top_k > count:
        raise ModelError(f"config: num_experts_per_tok ({top_k}) must not exceed {experts} ({count})")
    return count, top_k


def positive(config: Config, name: str) -> float | None:
    """A positive number of the config; None for null and absent. Errors: `ModelError` for something else."""
    value = config.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ModelError(f"config: {name} must be a positive number, found {value!r}")
    return float(value)


def flag(config: Config, name: str) -> bool:
    """True or false; null and absent are false. Errors: `ModelError` for something else."""
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise ModelError(f"config: {name} must be true or false, found {value!r}")
    return bool(value)


def refuse_unless(config: Config, **neutral: Sequence[Any]) -> None:
    """Errors: `ModelError` for a field that is there and whose value is none of its `neutral` ones (nor null)."""
    for name, values in neutral.items():
        found = config.get(name)
        if found is not None and found not in values:
            known = " or ".join(repr(value) for value in values) or "null"
            raise ModelError(f"config: {name} {found!r} is not supported by this model type; {known} is")


def sliding_layers(config: Config, layers: int, default: Callable[[int], bool]) -> tuple[bool, ...]:
    """Per layer, whether it attends to a window: as `layer_types` says, or else `default(layer)`.

    Errors: `ModelError` for a `layer_types` that does not fit.
    """
    kinds = config.get("layer_types")
    if not kinds:
        return tuple(default(index) for index in range(layers))
    if not isinstance(kinds, list | tuple) or len(kinds) != layers:
        found = f"names {len(kinds)} layers" if isinstance(kinds, list | tuple) else f"is {kinds!r}"
        raise ModelError(f"config: layer_types {found}, num_hidden_layers is {layers}")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise ModelError(f"config: layer type {kind!r} is not supported; full_attention and sliding_attention are")
    return tuple(kind == "sliding_attention" for kind in kinds)


def layer_windows(config: Config, slides: Sequence[bool], max_positions: int) -> tuple[int, ...]:
    """Per layer, the tokens that a query sees (itself included), 0 for all: `sliding_window` in those that slide.

    Errors: `ModelError` when a layer slides and there is no window.
    """
    if not any(slides):
        return (0,) * len(slides)
    if config.get("sliding_window") is None:
        raise ModelError("config: layers with sliding_attention need a sliding_window, and none is in force")
    window = whole(config, "sliding_window")
    if window >= max_positions:
        window = 0  # it hides nothing
    return tuple(window if does_slide else 0 for does_slide in slides)
