"""Qwen3 with experts: Qwen3's shape with a mixture of experts in the layers that are not dense.

Source: Yang et al., "Qwen3 Technical Report", 2025.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from asyncpage.models.config import Config, DecoderSizes, flag, layer_windows, refuse_unless, whole
from asyncpage.models.decoder import Decoder, DecoderLayer
from asyncpage.models.parameter import Parameters
from asyncpage.models.parts import Parts
from asyncpage.models.qwen2_moe import qwen_routing, sparse_layers
from asyncpage.models.rope import RopeSettings

_DEFAULTS: dict[str, Any] = {
    "decoder_sparse_step": 1,
    "hidden_act": "silu",
    "intermediate_size": 6144,
    "max_position_embeddings": 32768,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
}


class Qwen3Moe:
    """See `family.Family`."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "Qwen3 MoE"
    kind: ClassVar[Literal["decoder", "encoder"]] = "decoder"
    architectures: ClassVar[tuple[str, ...]] = ("Qwen3MoeForCausalLM",)

    def build(self, config: Config, parameters: Parameters) -> Decoder:
        config = {**_DEFAULTS, **config}
        refuse_unless(config, layer_types=())
        sizes = DecoderSizes.parse(config)
        parts = Parts(sizes, parameters)
        # In this family a window that is in use is every layer's.
        slides = (flag(config, "use_sliding_window") and config["sliding_window"] is not None,) * sizes.layers
        windows = layer_windows(config, slides, sizes.max_positions)
        is_biased, is_sparse = flag(config, "attention_bias"), sparse_layers(config, sizes.layers)
        routing, inner = qwen_routing(config, experts=128), whole(config, "moe_intermediate_size")

        def layer(index: int) -> DecoderLayer:
            attention = parts.attention(
                index,
                window=windows[index],
                qk_norm=parts.head_norm(index),
                is_qkv_biased=is_biased,
                is_output_biased=is_biased,
            )
            sparse = is_sparse[index]
            feed_forward = parts.experts(index, routing, inner=inner) if sparse else parts.feed_forward(index)
            return parts.pre_norm_layer(index, attention, feed_forward)

        return parts.decoder(layer, [RopeSettings.parse(config, sizes.head_dim, sizes.max_positions)])
