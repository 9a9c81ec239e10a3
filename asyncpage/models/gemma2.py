"""Gemma 2: four norms a layer, every other layer sees a window, scores and logits are capped, embeddings are scaled.

Source: Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size", 2024.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

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
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}


class Gemma2:
    """See `family.Family`."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "Gemma 2"
    kind: ClassVar[Literal["decoder", "encoder"]] = "decoder"
    architectures: ClassVar[tuple[str, ...]] = ("Gemma2ForCausalLM",)

    def build(self, config: Config, parameters: Parameters) -> Decoder:
        config = {**_DEFAULTS, **config}
        refuse_unless(config, use_bidirectional_attention=(False,))
        sizes = DecoderSizes.parse(config, activation="hidden_activation")
        parts = Parts(sizes, parameters, is_offset_norm=True)
        slides = sliding_layers(config, sizes.layers, lambda index: index % 2 == 0)
        windows = layer_windows(config, slides, sizes.max_positions)
        softcap = positive(config, "attn_logit_softcapping") or 0.0
        scale = whole(config, "query_pre_attn_scalar") ** -0.5
        is_biased = flag(config, "attention_bias")

        def layer(index: int) -> DecoderLayer:
            attention = parts.attention(
                index,
                window=windows[index],
                softcap=softcap,
                scale=scale,
                is_qkv_biased=is_biased,
                is_output_biased=is_biased,
            )
            return parts.sandwich_layer(index, attention, parts.feed_forward(index))

        return parts.decoder(
            layer,
            [RopeSettings.parse(config, sizes.head_dim, sizes.max_positions)],
            embedding_scale=sizes.hidden_size**0.5,
            logit_softcap=positive(config, "final_logit_softcapping") or 0.0,
        )
