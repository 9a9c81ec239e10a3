"""Mistral and Ministral: Llama's shape with a sliding window over all layers, or over those that `layer_types` names.

Source: Jiang et al., "Mistral 7B", 2023.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from asyncpage.models.config import Config, DecoderSizes, layer_windows, sliding_layers
from asyncpage.models.decoder import Decoder, DecoderLayer
from asyncpage.models.parameter import Parameters
from asyncpage.models.parts import Parts
from asyncpage.models.rope import RopeSettings

_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
}


class Mistral:
    """See `family.Family`."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "Mistral"
    kind: ClassVar[Literal["decoder", "encoder"]] = "decoder"
    architectures: ClassVar[tuple[str, ...]] = ("MistralForCausalLM", "MinistralForCausalLM")

    def build(self, config: Config, parameters: Parameters) -> Decoder:
        config = {**_DEFAULTS, **config}
        sizes = DecoderSizes.parse(config)
        parts = Parts(sizes, parameters)
        slides = sliding_layers(config, sizes.layers, lambda index: config["sliding_window"] is not None)
        windows = layer_windows(config, slides, sizes.max_positions)

        def layer(index: int) -> DecoderLayer:
            return parts.pre_norm_layer(index, parts.attention(index, window=windows[index]), parts.feed_forward(index))

        return parts.decoder(layer, [RopeSettings.parse(config, sizes.head_dim, sizes.max_positions)])
