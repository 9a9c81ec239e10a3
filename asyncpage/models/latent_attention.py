"""Multi-head latent attention: the cache has one narrow row a token, and all heads' keys and values are made of it.

A layer (`decoder`) calls it like any other attention. What makes keys and values of a row is absorbed: queries are
brought to the rows' own space before they meet the cache, and what they take out of it becomes values afterwards.

INVARIANT: what is cached of a token is `latent` items after their norm and `rope` items after their turn, once for all
heads; values are the first of these.

Source: DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model", 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncpage.models.attention import AttentionShape
from asyncpage.models.layers import RowMap
from asyncpage.models.model import Attend
from asyncpage.models.rope import Angles, from_pairs, turn


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Items of each part: of a cached row (`latent` and `rope`), of a head's query (`nope` and `rope`) and value."""

    heads: int
    latent: int
    rope: int
    nope: int
    value: int

    @property
    def query(self) -> int:
        return self.nope + self.rope

    @property
    def row(self) -> int:
        return self.latent + self.rope

    @property
    def shape(self) -> AttentionShape:
        return AttentionShape(self.heads, 1, self.row, self.latent, kind="mla")


@dataclass(frozen=True, slots=True, eq=False)
class LatentAttention:
    """The layer with index `layer`. `rope`: which of the decoder's ropes turns; pairs of items lie side by side.

    `query`: E items to `heads * (nope + rope)`. `down`: E items to `latent + rope`. What is absorbed are maps of each
    head by itself: `key_up` from `nope` items to `latent`, `value_up` from `latent` to `value`.
    """

    layer: int
    sizes: LatentSizes
    scale: float
    query: RowMap
    down: RowMap
    norm: RowMap
    key_up: RowMap
    value_up: RowMap
    output: RowMap
    rope: int = 0

    @property
    def shape(self) -> AttentionShape:
        return self.sizes.shape

    def __call__(self, x_TE: Tensor, angles: Sequence[Angles], attend: Attend) -> Tensor:
        sizes, tokens = self.sizes, len(x_TE)
        query_THQ = self.query(x_TE).view(tokens, sizes.heads, sizes.query)
        turned_THR = turn(from_pairs(query_THQ[..., sizes.nope :]), angles[self.rope])
        absorbed_THL = self.key_up(query_THQ[..., : sizes.nope])
        q_THD = torch.cat((absorbed_THL, turned_THR), -1)
        raw_TGD = self.down(x_TE)[:, None]
        key_TGR = turn(from_pairs(raw_TGD[..., sizes.latent :]), angles[self.rope])
        row_TGD = torch.cat((self.norm(raw_TGD[..., : sizes.latent]), key_TGR), -1)
        out_THL = attend(self.layer, q_THD, row_TGD, row_TGD[..., : sizes.latent])
        return self.output(self.value_up(out_THL).reshape(tokens, -1))
