"""SmolLM3: Llama's shape, in which every fourth layer turns no positions.

Source: Bakouch et al., "SmolLM3: smol, multilingual, long-context reasoner", 2025; layers without positions are those
of Yang et al., "RoPE to NoPE and Back Again", 2025.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from asyncpage.errors import ModelError
from asyncpage.models.config import Config, DecoderSizes, flag, layer_windows, sliding_layers, whole
from asyncpage.models.decoder import Decoder, DecoderLayer
from asyncpage.models.parameter import Parameters
from asyncpage.models.parts import Parts
from asyncpage.models.rope import RopeSettings

_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "no_rope_layer_interval": 4,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 2_000_000.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
}


class SmolLM3:
    """See `family.Family`."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "SmolLM3"
    kind: ClassVar[Literal["decoder", "encoder"]] = "decoder"
    architectures: ClassVar[tuple[str, ...]] = ("SmolLM3ForCausalLM",)

    def build(self, config: Config, parameters: Parameters) -> Decoder:
        config = {**_DEFAULTS, **config}
        if not flag(config, "use_sliding_window"):
            config["sliding_window"] = None
        sizes = DecoderSizes.parse(config)
        parts = Parts(sizes, parameters)
        turns, has_window = _turning_layers(config, sizes.layers), config["sliding_window"] is not None
        slides = sliding_layers(config, sizes.layers, lambda index: has_window and not turns[index])
        windows = layer_windows(config, slides, sizes.max_positions)
        is_attention_biased, is_mlp_biased = flag(config, "attention_bias"), flag(config, "mlp_bias")

        def layer(index: int) -> DecoderLayer:
            attention = parts.attention(
                index,
                window=windows[index],
                rope=0 if turns[index] else None,
                is_qkv_biased=is_attention_biased,
                is_output_biased=is_attention_biased,
            )
            return parts.pre_norm_layer(index, attention, parts.feed_forward(index, is_biased=is_mlp_biased))

        return parts.decoder(layer, [RopeSettings.parse(config, sizes.head_dim, sizes.max_positions)])


def _turning_layers(config: Config, layers: int) -> tuple[bool, ...]:
    """Which layers turn positions: `no_rope_layers` has a 1 for those that do, in spite of its name."""
    listed = config.get("no_rope_layers")
    if listed is None:
        interval = whole(config, "no_rope_layer_interval")
        return tuple((index + 1) % interval != 0 for index in range(layers))
    if not isinstance(listed, list | tuple) or len(listed) < layers or any(one not in (0, 1) for one in listed):
        raise ModelError(f"config: no_rope_layers must have a 0 or a 1 for each of {layers} layers, found {listed!r}")
    return tuple(bool(one) for one in listed[:layers])
