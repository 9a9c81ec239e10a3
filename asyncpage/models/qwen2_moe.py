"""Qwen1.5 and Qwen2 with experts: Qwen2's shape with a mixture of experts beside a shared one that each row weighs.

Source: Yang et al., "Qwen2 Technical Report", 2024.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from asyncpage.errors import ModelError
from asyncpage.models.config import Config, DecoderSizes, flag, layer_windows, routed, sliding_layers, whole
from asyncpage.models.decoder import Decoder, DecoderLayer
from asyncpage.models.experts import WeighedExpert
from asyncpage.models.layers import RowMap
from asyncpage.models.parameter import Parameters
from asyncpage.models.parts import Parts
from asyncpage.models.rope import RopeSettings
from asyncpage.models.router import Routing

_DEFAULTS: dict[str, Any] = {
    "decoder_sparse_step": 1,
    "hidden_act": "silu",
    "intermediate_size": 5632,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 16,
    "qkv_bias": True,
    "rms_norm_eps": 1e-6,
    "shared_expert_intermediate_size": 5632,
    "sliding_window": 4096,
}


class Qwen2Moe:
    """See `family.Family`."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "Qwen2 MoE"
    kind: ClassVar[Literal["decoder", "encoder"]] = "decoder"
    architectures: ClassVar[tuple[str, ...]] = ("Qwen2MoeForCausalLM",)

    def build(self, config: Config, parameters: Parameters) -> Decoder:
        config = {**_DEFAULTS, **config}
        sizes = DecoderSizes.parse(config)
        parts = Parts(sizes, parameters)
        windows, is_sparse = _windows(config, sizes), sparse_layers(config, sizes.layers)
        routing, inner = qwen_routing(config, experts=60), whole(config, "moe_intermediate_size")
        shared_inner, is_biased = whole(config, "shared_expert_intermediate_size"), flag(config, "qkv_bias")

        def sparse(index: int) -> RowMap:
            gate = parameters.linear([f"model.layers.{index}.mlp.shared_expert_gate"], [1], sizes.hidden_size)
            shared = parts.feed_forward(index, name="mlp.shared_expert", inner=shared_inner)
            return parts.experts(index, routing, inner=inner, shared=WeighedExpert(shared, gate))

        def layer(index: int) -> DecoderLayer:
            attention = parts.attention(index, window=windows[index], is_qkv_biased=is_biased)
            return parts.pre_norm_layer(
                index, attention, sparse(index) if is_sparse[index] else parts.feed_forward(index)
            )

        return parts.decoder(layer, [RopeSettings.parse(config, sizes.head_dim, sizes.max_positions)])


def qwen_routing(config: Config, *, experts: int) -> Routing:
    """`experts`: how many there are where the config says nothing. Some files call it `num_local_experts`."""
    found, newer = config.get("num_experts"), config.get("num_local_experts")
    if found is not None and newer is not None and found != newer:
        raise ModelError(f"config: num_experts ({found}) and num_local_experts ({newer}) contradict each other")
    known = [count for count in (found, newer, experts) if count is not None]
    count, top_k = routed({**config, "num_experts": known[0]}, "num_experts")
    return Routing(count, top_k, renormalises=flag(config, "norm_topk_prob"))


def sparse_layers(config: Config, layers: int) -> tuple[bool, ...]:
    """Which layers have experts: each `decoder_sparse_step`-th, but for those in `mlp_only_layers`."""
    step, dense = whole(config, "decoder_sparse_step"), config.get("mlp_only_layers") or ()
    if not isinstance(dense, list | tuple) or any(type(index) is not int for index in dense):
        raise ModelError(f"config: mlp_only_layers must be a list of layers' indices, found {dense!r}")
    return tuple(index not in dense and (index + 1) % step == 0 for index in range(layers))


def _windows(config: Config, sizes: DecoderSizes) -> tuple[int, ...]:
    """Per layer, the tokens that a query sees: unless `layer_types` says which, every other one of the lower layers."""
    if not flag(config, "use_sliding_window"):
        config = {**config, "sliding_window": None}
    first_full = whole(config, "max_window_layers", least=0)
    has_window = config["sliding_window"] is not None
    slides = sliding_layers(config, sizes.layers, lambda index: has_window and index % 2 == 0 and index < first_full)
    return layer_windows(config, slides, sizes.max_positions)
