"""A decoder put together: embedding, layers that add to one stream, last norm, head.

Families make its parts and say how many; the executor calls `forward` once a step and gives `attend`.

INVARIANT: rows meet nowhere but in `attend`, and nothing but layers writes to the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from asyncpage.backends.contract import AttentionSpec, LayerParams
from asyncpage.models.attention import AttentionPart
from asyncpage.models.layer_group import Layering
from asyncpage.models.layers import RowMap, TokenRows
from asyncpage.models.model import Attend
from asyncpage.models.rope import Angles, Rope


@dataclass(frozen=True, slots=True, eq=False)
class DecoderLayer:
    """One layer: attention, then feed-forward, each added to the residual stream, with norms where a family has them.

    A norm "before" sees the stream and gives the part's input; one "after" sees the part's output before it is added.
    """

    attention: AttentionPart
    feed_forward: RowMap
    before_attention: RowMap | None = None
    after_attention: RowMap | None = None
    before_feed_forward: RowMap | None = None
    after_feed_forward: RowMap | None = None

    def advance(self, hidden_TE: Tensor, angles: Sequence[Angles], attend: Attend) -> None:
        """Add this layer's part to `hidden_TE`, in place."""
        x_TE = hidden_TE if self.before_attention is None else self.before_attention(hidden_TE)
        x_TE = self.attention(x_TE, angles, attend)
        hidden_TE += x_TE if self.after_attention is None else self.after_attention(x_TE)
        x_TE = hidden_TE if self.before_feed_forward is None else self.before_feed_forward(hidden_TE)
        x_TE = self.feed_forward(x_TE)
        hidden_TE += x_TE if self.after_feed_forward is None else self.after_feed_forward(x_TE)


class Decoder:
    """See `model.Model`. `ropes`: the ways to turn positions that its attention parts name by index.

    `layers`, `norm` and `ropes` are what `forward` is made of, for those who do the same in another way.
    """

    def __init__(
        self,
        *,
        embedding: TokenRows,
        layers: Sequence[DecoderLayer],
        norm: RowMap,
        head: RowMap,
        ropes: Sequence[Rope],
        max_model_len: int,
    ) -> None:
        self.vocab_size, self.hidden_size = embedding.shape
        self.max_model_len = max_model_len
        self.layers, self.norm, self.ropes = tuple(layers), norm, tuple(ropes)
        self._embedding, self._head = embedding, head
        self._layering = layering = Layering.of([layer.attention.shape for layer in self.layers])
        self.groups, self.layer_groups, self.layer_slots = layering.groups, layering.layer_groups, layering.layer_slots
        self.layer_params = tuple(LayerParams(layer.attention.scale) for layer in self.layers)

    def specs(self, kv_dtype: str, block_size: int) -> tuple[AttentionSpec, ...]:
        """One a group."""
        return self._layering.specs(self._embedding.dtype, kv_dtype, block_size)

    def embed(self, tokens_T: Tensor) -> Tensor:
        """Rows [T, E], new ones."""
        return self._embedding(tokens_T)

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Hidden states [T, E] after the last norm."""
        hidden_TE = self.embed(tokens_T)
        angles = [rope.angles(positions_T, hidden_TE.dtype) for rope in self.ropes]
        for layer in self.layers:
            layer.advance(hidden_TE, angles, attend)
        return self.norm(hidden_TE)

    def logits(self, hidden_RE: Tensor) -> Tensor:
        """float32 [R, vocab_size]."""
        return self._head(hidden_RE)
