"""Llama 1 to 3 and what is made like it: grouped-query attention with rotary positions, a norm before each part.

Source: Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from asyncpage.models.config import Config, DecoderSizes, flag
from asyncpage.models.decoder import Decoder, DecoderLayer
from asyncpage.models.parameter import Parameters
from asyncpage.models.parts import Parts
from asyncpage.models.rope import RopeSettings

_DEFAULTS: dict[str, Any] = {"hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-6}


class Llama:
    """See `family.Family`. A `sliding_window` says nothing in this family."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "Llama"
    kind: ClassVar[Literal["decoder", "encoder"]] = "decoder"
    architectures: ClassVar[tuple[str, ...]] = ("LlamaForCausalLM",)

    def build(self, config: Config, parameters: Parameters) -> Decoder:
        config = {**_DEFAULTS, **config}
        sizes = DecoderSizes.parse(config)
        parts = Parts(sizes, parameters)
        is_attention_biased, is_mlp_biased = flag(config, "attention_bias"), flag(config, "mlp_bias")

        def layer(index: int) -> DecoderLayer:
            return parts.pre_norm_layer(
                index,
                parts.attention(index, is_qkv_biased=is_attention_biased, is_output_biased=is_attention_biased),
                parts.feed_forward(index, is_biased=is_mlp_biased),
            )

        return parts.decoder(layer, [RopeSettings.parse(config, sizes.head_dim, sizes.max_positions)])
