"""OLMo 2: norms behind attention and feed-forward and none before, queries and keys normed over all heads together.

Source: OLMo Team, "2 OLMo 2 Furious", 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from asyncpage.models.config import Config, DecoderSizes, flag
from asyncpage.models.decoder import Decoder, DecoderLayer
from asyncpage.models.layers import RowMap
from asyncpage.models.parameter import Parameters
from asyncpage.models.parts import Parts
from asyncpage.models.rope import RopeSettings

_DEFAULTS: dict[str, Any] = {"hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}


@dataclass(frozen=True, slots=True, eq=False)
class WidthNorm:
    """Norms queries, the first `q_items` of a row, over all their heads together, and keys over all of theirs."""

    q_items: int
    q_norm: RowMap
    k_norm: RowMap

    def __call__(self, x_THD: Tensor) -> Tensor:
        x_TE = x_THD.flatten(1)
        q_TE, k_TE = x_TE[:, : self.q_items], x_TE[:, self.q_items :]
        return torch.cat((self.q_norm(q_TE), self.k_norm(k_TE)), -1).view(x_THD.shape)


class Olmo2:
    """See `family.Family`."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "OLMo 2"
    kind: ClassVar[Literal["decoder", "encoder"]] = "decoder"
    architectures: ClassVar[tuple[str, ...]] = ("Olmo2ForCausalLM",)

    def build(self, config: Config, parameters: Parameters) -> Decoder:
        config = {**_DEFAULTS, **config}
        sizes = DecoderSizes.parse(config)
        parts = Parts(sizes, parameters)
        q_items, kv_items = sizes.q_heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        is_biased = flag(config, "attention_bias")

        def layer(index: int) -> DecoderLayer:
            at = f"model.layers.{index}."
            return DecoderLayer(
                attention=parts.attention(
                    index,
                    qk_norm=WidthNorm(
                        q_items,
                        parts.norm(f"{at}self_attn.q_norm", q_items),
                        parts.norm(f"{at}self_attn.k_norm", kv_items),
                    ),
                    is_qkv_biased=is_biased,
                    is_output_biased=is_biased,
                ),
                feed_forward=parts.feed_forward(index),
                after_attention=parts.norm(f"{at}post_attention_layernorm"),
                after_feed_forward=parts.norm(f"{at}post_feedforward_layernorm"),
            )

        return parts.decoder(layer, [RopeSettings.parse(config, sizes.head_dim, sizes.max_positions)])
