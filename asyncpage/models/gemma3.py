"""Gemma 3 for text: as Gemma 2, with a norm of every query and key head, five layers of six that see a window, and a
rotary base of their own for these.

Source: Gemma Team, "Gemma 3 Technical Report", 2025.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from asyncpage.errors import ModelError
from asyncpage.models.config import (
    Config,
    DecoderSizes,
    flag,
    layer_windows,
    positive,
    refuse_unless,
    sliding_layers,
    whole,
)
from asyncpage.models.decoder import Decoder, DecoderLayer
from asyncpage.models.parameter import Parameters
from asyncpage.models.parts import Parts
from asyncpage.models.rope import RopeSettings

_DEFAULTS: dict[str, Any] = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10_000.0,
    "rope_theta": 1_000_000.0,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
}
_FULL, _SLIDING = 0, 1  # the two ropes


class Gemma3:
    """See `family.Family`."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "Gemma 3"
    kind: ClassVar[Literal["decoder", "encoder"]] = "decoder"
    architectures: ClassVar[tuple[str, ...]] = ("Gemma3ForCausalLM",)

    def build(self, config: Config, parameters: Parameters) -> Decoder:
        config = {**_DEFAULTS, **config}
        # The library that publishes the family reads a cap of the scores and does not apply it.
        refuse_unless(config, use_bidirectional_attention=(False,), attn_logit_softcapping=())
        sizes = DecoderSizes.parse(config, activation="hidden_activation")
        parts = Parts(sizes, parameters, is_offset_norm=True)
        period = whole(config, "sliding_window_pattern")
        slides = sliding_layers(config, sizes.layers, lambda index: (index + 1) % period != 0)
        windows = layer_windows(config, slides, sizes.max_positions)
        scale = whole(config, "query_pre_attn_scalar") ** -0.5
        is_biased = flag(config, "attention_bias")

        def layer(index: int) -> DecoderLayer:
            attention = parts.attention(
                index,
                window=windows[index],
                scale=scale,
                rope=_SLIDING if slides[index] else _FULL,
                qk_norm=parts.head_norm(index),
                is_qkv_biased=is_biased,
                is_output_biased=is_biased,
            )
            return parts.sandwich_layer(index, attention, parts.feed_forward(index))

        return parts.decoder(
            layer,
            _ropes(config, sizes),
            embedding_scale=sizes.hidden_size**0.5,
            logit_softcap=positive(config, "final_logit_softcapping") or 0.0,
        )


def _ropes(config: Config, sizes: DecoderSizes) -> list[RopeSettings]:
    """Of layers that see everything, which `rope_scaling` stretches, and of those that slide."""
    each = config.get("rope_parameters") or {}
    strange = each.keys() - {"full_attention", "sliding_attention"}
    if strange:
        raise ModelError(
            f"config: rope_parameters of this model type are for full_attention and for sliding_attention, found "
            f"{', '.join(sorted(strange))}"
        )
    full = {
        "rope_theta": config["rope_theta"],
        **(each.get("full_attention") or {}),
        **(config.get("rope_scaling") or {}),
    }
    sliding = {"rope_theta": config["rope_local_base_freq"], **(each.get("sliding_attention") or {})}
    return [
        RopeSettings.parse({"rope_parameters": one}, sizes.head_dim, sizes.max_positions) for one in (full, sliding)
    ]
