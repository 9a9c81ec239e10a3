"""Mixtral: Mistral's shape with a mixture of experts in every layer.

Source: Jiang et al., "Mixtral of Experts", 2024.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from asyncpage.models.config import Config, DecoderSizes, layer_windows, refuse_unless, routed
from asyncpage.models.decoder import Decoder, DecoderLayer
from asyncpage.models.parameter import Parameters
from asyncpage.models.parts import Parts
from asyncpage.models.rope import RopeSettings
from asyncpage.models.router import Routing

_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "sliding_window": None,
}


class Mixtral:
    """See `family.Family`."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "Mixtral"
    kind: ClassVar[Literal["decoder", "encoder"]] = "decoder"
    architectures: ClassVar[tuple[str, ...]] = ("MixtralForCausalLM",)

    def build(self, config: Config, parameters: Parameters) -> Decoder:
        config = {**_DEFAULTS, **config}
        refuse_unless(config, layer_types=())
        sizes = DecoderSizes.parse(config)
        parts = Parts(sizes, parameters)
        slides = (config["sliding_window"] is not None,) * sizes.layers
        windows = layer_windows(config, slides, sizes.max_positions)
        experts, top_k = routed(config, "num_local_experts")
        routing = Routing(experts, top_k, renormalises=True)

        def layer(index: int) -> DecoderLayer:
            experts = parts.experts(
                index,
                routing,
                inner=sizes.intermediate_size,
                name="block_sparse_moe",
                projections=("w1", "w3", "w2"),
            )
            return parts.pre_norm_layer(index, parts.attention(index, window=windows[index]), experts)

        return parts.decoder(layer, [RopeSettings.parse(config, sizes.head_dim, sizes.max_positions)])
