"""Qwen1.5, Qwen2 and Qwen2.5: Llama's shape with biases on queries, keys and values, and windows in the upper layers.

Source: Yang et al., "Qwen2 Technical Report", 2024.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from asyncpage.models.config import Config, DecoderSizes, flag, layer_windows, sliding_layers, whole
from asyncpage.models.decoder import Decoder, DecoderLayer
from asyncpage.models.parameter import Parameters
from asyncpage.models.parts import Parts
from asyncpage.models.rope import RopeSettings

_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
}


class Qwen2:
    """See `family.Family`."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "Qwen2"
    kind: ClassVar[Literal["decoder", "encoder"]] = "decoder"
    architectures: ClassVar[tuple[str, ...]] = ("Qwen2ForCausalLM",)

    def build(self, config: Config, parameters: Parameters) -> Decoder:
        config = {**_DEFAULTS, **config}
        sizes = DecoderSizes.parse(config)
        parts = Parts(sizes, parameters)
        windows = qwen_windows(config, sizes)

        def layer(index: int) -> DecoderLayer:
            attention = parts.attention(index, window=windows[index], is_qkv_biased=True)
            return parts.pre_norm_layer(index, attention, parts.feed_forward(index))

        return parts.decoder(layer, [RopeSettings.parse(config, sizes.head_dim, sizes.max_positions)])


def qwen_windows(config: Config, sizes: DecoderSizes) -> tuple[int, ...]:
    """Per layer, the tokens that a query sees: without `use_sliding_window` the other two settings mean nothing."""
    if not flag(config, "use_sliding_window"):
        config = {**config, "sliding_window": None}
    first = whole(config, "max_window_layers", least=0)
    has_window = config["sliding_window"] is not None
    slides = sliding_layers(config, sizes.layers, lambda index: has_window and index >= first)
    return layer_windows(config, slides, sizes.max_positions)
