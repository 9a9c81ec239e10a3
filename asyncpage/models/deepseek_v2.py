"""DeepSeek-V2 and V2-Lite: latent attention, and a mixture of many small experts beside shared ones.

Source: DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model", 2024.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from asyncpage.errors import ModelError
from asyncpage.models.config import Config, DecoderSizes, flag, positive, refuse_unless, routed, whole
from asyncpage.models.decoder import Decoder, DecoderLayer
from asyncpage.models.latent_attention import LatentAttention, LatentSizes
from asyncpage.models.layers import NarrowLinear, RmsNorm, RowMap
from asyncpage.models.parameter import Parameters
from asyncpage.models.parts import Parts
from asyncpage.models.rope import RopeSettings, yarn_temperature
from asyncpage.models.router import Routing

_DEFAULTS: dict[str, Any] = {
    "first_k_dense_replace": 0,
    "hidden_act": "silu",
    "intermediate_size": 11008,
    "kv_lora_rank": 512,
    "max_position_embeddings": 2048,
    "moe_intermediate_size": 1407,
    "moe_layer_freq": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-6,
    "topk_method": "greedy",
    "v_head_dim": 128,
}
# The norms inside of attention have this one, whatever rms_norm_eps says.
_INNER_NORM_EPS = 1e-6


class DeepseekV2:
    """See `family.Family`."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "DeepSeek-V2"
    kind: ClassVar[Literal["decoder", "encoder"]] = "decoder"
    architectures: ClassVar[tuple[str, ...]] = ("DeepseekV2ForCausalLM",)

    def build(self, config: Config, parameters: Parameters) -> Decoder:
        config = {**_DEFAULTS, **config}
        # Weights that add up to one are scaled in some programs that run this family, and not in others.
        refuse_unless(config, scoring_func=("softmax",), norm_topk_prob=(False,), ep_size=(1,))
        rope_dim = whole(config, "qk_rope_head_dim")
        sizes = DecoderSizes.parse({**config, "head_dim": rope_dim})
        if sizes.kv_heads != sizes.q_heads:
            raise ModelError(
                f"config: num_key_value_heads ({sizes.kv_heads}) must be num_attention_heads ({sizes.q_heads}) in this "
                "model type, whose heads share one cached row"
            )
        latent = LatentSizes(
            heads=sizes.q_heads,
            latent=whole(config, "kv_lora_rank"),
            rope=rope_dim,
            nope=whole(config, "qk_nope_head_dim"),
            value=whole(config, "v_head_dim"),
        )
        parts, rope = Parts(sizes, parameters), RopeSettings.parse(config, rope_dim, sizes.max_positions)
        attention = _Attention(config, sizes, latent, parameters, _scale(latent, rope))
        routing, inner = _routing(config), whole(config, "moe_intermediate_size")
        shared = 0 if config["n_shared_experts"] is None else whole(config, "n_shared_experts")
        first, step = whole(config, "first_k_dense_replace", least=0), whole(config, "moe_layer_freq")
        is_biased = flag(config, "mlp_bias")

        def feed_forward(index: int) -> RowMap:
            if index < first or index % step:
                return parts.feed_forward(index, is_biased=is_biased)
            beside: RowMap | None = None
            if shared:
                beside = parts.feed_forward(index, is_biased=is_biased, name="mlp.shared_experts", inner=shared * inner)
            return parts.experts(index, routing, inner=inner, shared=beside)

        def layer(index: int) -> DecoderLayer:
            return parts.pre_norm_layer(index, attention.layer(index), feed_forward(index))

        return parts.decoder(layer, [rope])


class _Attention:
    """Makes the attention of each layer."""

    def __init__(
        self, config: Config, sizes: DecoderSizes, latent: LatentSizes, parameters: Parameters, scale: float
    ) -> None:
        self._hidden, self._latent, self._parameters, self._scale = sizes.hidden_size, latent, parameters, scale
        self._is_biased = flag(config, "attention_bias")
        self._query_latent = None if config["q_lora_rank"] is None else whole(config, "q_lora_rank")

    def layer(self, index: int) -> LatentAttention:
        at, linear, sizes = f"model.layers.{index}.self_attn.", self._parameters.linear, self._latent
        rows = sizes.heads * (sizes.nope + sizes.value)
        up_HXL = self._parameters.take(f"{at}kv_b_proj.weight", rows, sizes.latent)
        up_HXL = up_HXL.view(sizes.heads, sizes.nope + sizes.value, sizes.latent)
        return LatentAttention(
            layer=index,
            sizes=sizes,
            scale=self._scale,
            query=self._query(at),
            down=linear([f"{at}kv_a_proj_with_mqa"], [sizes.row], self._hidden, is_biased=self._is_biased),
            norm=self._norm(f"{at}kv_a_layernorm", sizes.latent),
            key_up=self._parameters.head_linear(up_HXL[:, : sizes.nope]),
            value_up=self._parameters.head_linear(up_HXL[:, sizes.nope :].transpose(1, 2)),
            output=linear([f"{at}o_proj"], [self._hidden], sizes.heads * sizes.value, is_biased=self._is_biased),
        )

    def _query(self, at: str) -> RowMap:
        """One map, or two with a norm between them."""
        linear, rows, narrow = self._parameters.linear, self._latent.heads * self._latent.query, self._query_latent
        if narrow is None:
            return linear([f"{at}q_proj"], [rows], self._hidden)
        down = linear([f"{at}q_a_proj"], [narrow], self._hidden, is_biased=self._is_biased)
        norm, up = self._norm(f"{at}q_a_layernorm", narrow), linear([f"{at}q_b_proj"], [rows], narrow)
        return NarrowLinear(down, norm, up)

    def _norm(self, name: str, width: int) -> RowMap:
        return RmsNorm(self._parameters.take(f"{name}.weight", width), _INNER_NORM_EPS)


def _scale(sizes: LatentSizes, rope: RopeSettings) -> float:
    """What scores are multiplied by: a context that was stretched has a temperature of its own."""
    weight = rope.scaling.get("mscale_all_dim")
    if rope.kind == "default" or not weight:
        if rope.scaling.get("mscale", 1) != 1:
            raise ModelError(f"config: rope scaling's mscale {rope.scaling['mscale']!r} needs an mscale_all_dim")
        return 1 / math.sqrt(sizes.query)
    temperature = yarn_temperature(rope.number("factor"), rope.number("mscale_all_dim"))
    return temperature**2 / math.sqrt(sizes.query)


def _routing(config: Config) -> Routing:
    experts, top_k = routed(config, "n_routed_experts")
    scale, method = positive(config, "routed_scaling_factor") or 1.0, config["topk_method"]
    if method == "greedy":
        return Routing(experts, top_k, scale=scale)
    if method != "group_limited_greedy":
        raise ModelError(
            f"config: topk_method {method!r} is not supported by this model type; greedy and group_limited_greedy are"
        )
    groups, kept = whole(config, "n_group"), whole(config, "topk_group")
    if experts % groups or kept > groups or kept * (experts // groups) < top_k:
        raise ModelError(
            f"config: {experts} n_routed_experts in {groups} n_group, of which topk_group keeps {kept}, do not give "
            f"{top_k} num_experts_per_tok to each row"
        )
    return Routing(experts, top_k, scale=scale, groups=groups, kept_groups=kept)
