"""A head that drafts: one decoder layer over what the great model felt at each token and the token that came next.

`head_proposer` runs it beside the model. At place t it is given token t and the model's state at place t - 1 (behind
the last norm), and predicts the state at place t, whose likeliest token is the one at t + 1. What it predicts takes the
place of a state where the model has not computed one yet. It knows the tokens that come often, and no others: a product
with every row of the vocabulary would cost more than the whole layer.

Source: EAGLE (Li et al. 2024); the short vocabulary is that of FR-Spec (Zhao et al. 2025).

INVARIANT: a layer's keys and values at a place depend on that place's token and state alone, so that those which left
the window never need to be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from asyncpage.backends.contract import AttentionSpec, LayerParams
from asyncpage.errors import ModelError
from asyncpage.models.config import DecoderSizes, whole
from asyncpage.models.layer_group import Layering
from asyncpage.models.model import Attend
from asyncpage.models.parameter import Parameters
from asyncpage.models.parts import Parts
from asyncpage.models.rope import Rope, RopeSettings

Embed = Callable[[Tensor], Tensor]
"""The great model's: int64 tokens [T] to rows [T, E]."""


class DraftHead:
    """`config`: `config.json`'s words (`head_file`). `draft_ids` int64 [D]: the tokens that it knows, of all there are.

    `window`: places that it looks back at, itself included. The other fields are those of `model.Model`, for one layer.
    """

    def __init__(self, config: Mapping[str, Any], parameters: Parameters, draft_ids: Tensor) -> None:
        sizes = DecoderSizes.parse(config)
        self.window = whole(config, "sliding_window")
        if self.window > sizes.max_positions:
            raise ModelError(f"config: sliding_window {self.window} is more than max_position_embeddings")
        parts, hidden = Parts(sizes, parameters), sizes.hidden_size
        rope = RopeSettings.parse(config, sizes.head_dim, sizes.max_positions)
        self.vocab_size, self.hidden_size, self.max_model_len = sizes.vocab_size, hidden, rope.usable_positions
        self.draft_ids = draft_ids.to(parameters.device)
        if draft_ids.shape != (whole(config, "draft_vocab_size"),):
            raise ModelError(f"draft_ids has shape {list(draft_ids.shape)}, draft_vocab_size is another")
        self._token_norm, self._state_norm = parts.norm("token_norm"), parts.norm("state_norm")
        self._join = parameters.linear(["join"], [hidden], 2 * hidden)
        self._layer = parts.pre_norm_layer(0, parts.attention(0, window=self.window), parts.feed_forward(0))
        self._norm = parts.norm("norm")
        self._head = parameters.linear(["head"], [len(draft_ids)], hidden)
        self._rope, self.dtype = Rope(rope, parameters.device), parameters.dtype
        attention = self._layer.attention
        self._layering = layering = Layering.of([attention.shape])
        self.groups, self.layer_groups, self.layer_slots = layering.groups, layering.layer_groups, layering.layer_slots
        self.layer_params = (LayerParams(attention.scale),)

    @property
    def state_bytes(self) -> int:
        """What the states that it looks back at take, of one row."""
        return self.window * self.hidden_size * self.dtype.itemsize

    def specs(self, kv_dtype: str, block_size: int) -> tuple[AttentionSpec, ...]:
        """What its one group asks of a backend."""
        return self._layering.specs(self.dtype, kv_dtype, block_size)

    def forward(self, tokens_TE: Tensor, states_TE: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Predicted states [T, E] of embedded tokens and the states before them."""
        hidden_TE = self._join(torch.cat((self._token_norm(tokens_TE), self._state_norm(states_TE)), -1))
        self._layer.advance(hidden_TE, [self._rope.angles(positions_T, hidden_TE.dtype)], attend)
        return self._norm(hidden_TE)

    def logits(self, states_SE: Tensor) -> Tensor:
        """float32 [S, vocabulary], minus infinity for tokens that it does not know; new."""
        logits_SV = torch.full((len(states_SE), self.vocab_size), -torch.inf, device=states_SE.device)
        return logits_SV.index_copy_(1, self.draft_ids, self._head(states_SE).float())
