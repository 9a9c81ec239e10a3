"""Qwen3: Llama's shape with a norm of every query and key head, and a head size of its own.

Source: Yang et al., "Qwen3 Technical Report", 2025.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from asyncpage.models.config import Config, DecoderSizes, flag
from asyncpage.models.decoder import Decoder, DecoderLayer
from asyncpage.models.parameter import Parameters
from asyncpage.models.parts import Parts
from asyncpage.models.qwen2 import qwen_windows
from asyncpage.models.rope import RopeSettings

_DEFAULTS: dict[str, Any] = {
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
}


class Qwen3:
    """See `family.Family`."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "Qwen3"
    kind: ClassVar[Literal["decoder", "encoder"]] = "decoder"
    architectures: ClassVar[tuple[str, ...]] = ("Qwen3ForCausalLM",)

    def build(self, config: Config, parameters: Parameters) -> Decoder:
        config = {**_DEFAULTS, **config}
        sizes = DecoderSizes.parse(config)
        parts = Parts(sizes, parameters)
        windows, is_biased = qwen_windows(config, sizes), flag(config, "attention_bias")

        def layer(index: int) -> DecoderLayer:
            attention = parts.attention(
                index,
                window=windows[index],
                qk_norm=parts.head_norm(index),
                is_qkv_biased=is_biased,
                is_output_biased=is_biased,
            )
            return parts.pre_norm_layer(index, attention, parts.feed_forward(index))

        return parts.decoder(layer, [RopeSettings.parse(config, sizes.head_dim, sizes.max_positions)])
