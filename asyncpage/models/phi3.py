"""Phi-3, Phi-3.5 and Phi-4: Llama's shape with fused tensors, a rotation of a part of each head, and LongRoPE.

Source: Abdin et al., "Phi-3 Technical Report", 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from asyncpage.errors import ModelError
from asyncpage.models.config import Config, DecoderSizes, layer_windows, refuse_unless
from asyncpage.models.decoder import Decoder, DecoderLayer
from asyncpage.models.parameter import Parameters
from asyncpage.models.parts import Parts
from asyncpage.models.rope import RopeSettings

_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}
_TRAINED_POSITIONS = 4096


class Phi3:
    """See `family.Family`."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "Phi-3"
    kind: ClassVar[Literal["decoder", "encoder"]] = "decoder"
    architectures: ClassVar[tuple[str, ...]] = ("Phi3ForCausalLM",)

    def build(self, config: Config, parameters: Parameters) -> Decoder:
        config = {**_DEFAULTS, **config}
        refuse_unless(config, layer_types=())
        sizes = DecoderSizes.parse(config)
        parts = Parts(sizes, parameters)
        slides = (config["sliding_window"] is not None,) * sizes.layers
        windows = layer_windows(config, slides, sizes.max_positions)

        def layer(index: int) -> DecoderLayer:
            attention = parts.attention(index, window=windows[index], is_fused=True)
            return parts.pre_norm_layer(index, attention, parts.feed_forward(index, is_fused=True))

        return parts.decoder(layer, [_rope(config, sizes)])


def _rope(config: Config, sizes: DecoderSizes) -> RopeSettings:
    """Older files say "su" or "yarn" for what is LongRoPE; nothing else stretches this family."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(scaling, Mapping):
        raise ModelError(f"config: rope_scaling must be an object, found {scaling!r}")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("su", "yarn"):
        kind = "longrope"
    if kind not in ("default", "longrope"):
        raise ModelError(f"config: rope scaling {kind!r} is not supported by this model type; longrope is")
    name = "original_max_position_embeddings"
    trained = config.get(name) or scaling.get(name) or _TRAINED_POSITIONS
    stretched = {**config, "rope_scaling": {**scaling, "rope_type": kind, name: trained}}
    return RopeSettings.parse(stretched, sizes.head_dim, sizes.max_positions, may_be_partial=True)
