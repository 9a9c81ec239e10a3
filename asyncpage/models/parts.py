"""Makes the parts that most decoders share, of a model's tensors by Hugging Face's names.

A family's `build` calls it for each layer and for the whole; what only one family has, it makes itself.

INVARIANT: a product that reads the same rows as another is one with it: queries with keys and values, gate with up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from asyncpage.models.attention import AttentionPart, AttentionShape, SelfAttention
from asyncpage.models.config import DecoderSizes
from asyncpage.models.decoder import Decoder, DecoderLayer
from asyncpage.models.experts import MixtureOfExperts
from asyncpage.models.layers import GatedFeedForward, Head, HeadNorm, RmsNorm, RowMap, WideRmsNorm
from asyncpage.models.parameter import Parameters
from asyncpage.models.rope import Rope, RopeSettings
from asyncpage.models.router import Router, Routing


class Parts:
    """Of a decoder of these `sizes`. `is_offset_norm`: its norms' weights are stored less one, and used in float32."""

    def __init__(self, sizes: DecoderSizes, parameters: Parameters, *, is_offset_norm: bool = False) -> None:
        self._sizes, self._parameters, self._is_offset_norm = sizes, parameters, is_offset_norm

    def norm(self, name: str, width: int | None = None) -> RowMap:
        """The norm called `name`, over `width` items (the hidden size)."""
        weight = self._norm_weight(name, width or self._sizes.hidden_size)
        return (WideRmsNorm if self._is_offset_norm else RmsNorm)(weight, self._sizes.norm_eps)

    def head_norm(self, layer: int) -> HeadNorm:
        """`q_norm` and `k_norm` of each head by itself, for queries and keys side by side."""
        sizes, at = self._sizes, f"model.layers.{layer}.self_attn."
        rows = [
            self._norm_weight(f"{at}{name}", sizes.head_dim).expand(heads, -1)
            for name, heads in (("q_norm", sizes.q_heads), ("k_norm", sizes.kv_heads))
        ]
        return HeadNorm(torch.cat(rows), sizes.norm_eps)

    def attention(
        self,
        layer: int,
        *,
        window: int = 0,
        softcap: float = 0.0,
        scale: float | None = None,
        rope: int | None = 0,
        qk_norm: RowMap | None = None,
        is_fused: bool = False,
        is_qkv_biased: bool = False,
        is_output_biased: bool = False,
    ) -> SelfAttention:
        """`self_attn` of a layer. `is_fused`: the checkpoint has one tensor, `qkv_proj`, instead of three."""
        sizes, at = self._sizes, f"model.layers.{layer}.self_attn."
        q_items, kv_items = sizes.q_heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        stems, rows = [f"{at}q_proj", f"{at}k_proj", f"{at}v_proj"], [q_items, kv_items, kv_items]
        if is_fused:
            stems, rows = [f"{at}qkv_proj"], [sum(rows)]
        linear = self._parameters.linear
        return SelfAttention(
            layer=layer,
            shape=AttentionShape(sizes.q_heads, sizes.kv_heads, sizes.head_dim, sizes.head_dim, window, softcap),
            scale=sizes.head_dim**-0.5 if scale is None else scale,
            qkv=linear(stems, rows, sizes.hidden_size, is_biased=is_qkv_biased),
            output=linear([f"{at}o_proj"], [sizes.hidden_size], q_items, is_biased=is_output_biased),
            rope=rope,
            qk_norm=qk_norm,
        )

    def feed_forward(
        self,
        layer: int,
        *,
        is_fused: bool = False,
        is_biased: bool = False,
        name: str = "mlp",
        inner: int | None = None,
    ) -> GatedFeedForward:
        """`mlp` of a layer, or what is called `name` there, over `inner` items (the intermediate size).

        `is_fused`: the checkpoint has one tensor, `gate_up_proj`, instead of two.
        """
        at, inner = f"model.layers.{layer}.{name}.", inner or self._sizes.intermediate_size
        if is_fused:
            return self._gated([f"{at}gate_up_proj"], f"{at}down_proj", inner, is_biased=is_biased)
        return self._gated([f"{at}gate_proj", f"{at}up_proj"], f"{at}down_proj", inner, is_biased=is_biased)

    def experts(
        self,
        layer: int,
        routing: Routing,
        *,
        inner: int,
        name: str = "mlp",
        projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
        shared: RowMap | None = None,
    ) -> MixtureOfExperts:
        """The mixture called `name` in a layer. `projections`: gate, up and down of its experts, over `inner` items."""
        at, (gate, up, down) = f"model.layers.{layer}.{name}.", projections

        def expert(number: int, parameters: Parameters) -> GatedFeedForward:
            of = f"{at}experts.{number}."
            return self._gated([f"{of}{gate}", f"{of}{up}"], f"{of}{down}", inner, parameters=parameters)

        linear = self._parameters.float_linear(f"{at}gate.weight", routing.experts, self._sizes.hidden_size)
        experts = self._parameters.experts.place(layer, routing.experts, expert, self._parameters)
        return MixtureOfExperts(Router(linear, routing), experts, shared)

    def pre_norm_layer(self, layer: int, attention: AttentionPart, feed_forward: RowMap) -> DecoderLayer:
        """The arrangement of most families: a norm before attention and one before feed-forward."""
        at = f"model.layers.{layer}."
        return DecoderLayer(
            attention=attention,
            feed_forward=feed_forward,
            before_attention=self.norm(f"{at}input_layernorm"),
            before_feed_forward=self.norm(f"{at}post_attention_layernorm"),
        )

    def sandwich_layer(self, layer: int, attention: AttentionPart, feed_forward: RowMap) -> DecoderLayer:
        """A norm before and one behind each of the two."""
        at = f"model.layers.{layer}."
        return DecoderLayer(
            attention=attention,
            feed_forward=feed_forward,
            before_attention=self.norm(f"{at}input_layernorm"),
            after_attention=self.norm(f"{at}post_attention_layernorm"),
            before_feed_forward=self.norm(f"{at}pre_feedforward_layernorm"),
            after_feed_forward=self.norm(f"{at}post_feedforward_layernorm"),
        )

    def decoder(
        self,
        layer: Callable[[int], DecoderLayer],
        ropes: Sequence[RopeSettings],
        *,
        embedding_scale: float = 1.0,
        logit_softcap: float = 0.0,
    ) -> Decoder:
        """The whole. `layer(index)` makes each layer; the scale is rounded to the model's type."""
        sizes, parameters = self._sizes, self._parameters
        table = parameters.hold("model.embed_tokens.weight", sizes.vocab_size, sizes.hidden_size)
        is_tied, hidden = sizes.is_tied, sizes.hidden_size
        head = parameters.map_by(table) if is_tied else parameters.linear(["lm_head"], [sizes.vocab_size], hidden)
        return Decoder(
            embedding=parameters.rows_of(table, float(torch.tensor(embedding_scale, dtype=parameters.dtype))),
            layers=[layer(index) for index in range(sizes.layers)],
            norm=self.norm("model.norm"),
            head=Head(head, logit_softcap),
            ropes=[Rope(settings, parameters.device) for settings in ropes],
            max_model_len=min([settings.usable_positions for settings in ropes], default=sizes.max_positions),
        )

    def _gated(
        self,
        stems: Sequence[str],
        down: str,
        inner: int,
        *,
        is_biased: bool = False,
        parameters: Parameters | None = None,
    ) -> GatedFeedForward:
        sizes, parameters = self._sizes, parameters or self._parameters
        linear = parameters.linear
        rows = [2 * inner // len(stems)] * len(stems)
        return GatedFeedForward(
            gate_up=linear(stems, rows, sizes.hidden_size, is_biased=is_biased),
            down=linear([down], [sizes.hidden_size], inner, is_biased=is_biased),
            activation=sizes.activation,
            native_gate=parameters.native_gate(sizes.activation),
        )

    def _norm_weight(self, name: str, width: int) -> Tensor:
        weight = self._parameters.take(f"{name}.weight", width)
        return 1.0 + weight.float() if self._is_offset_norm else weight
