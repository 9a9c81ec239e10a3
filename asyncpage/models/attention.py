"""The attention part of a decoder's layer: what it asks of the cache, and the usual one over grouped heads.

A layer (`decoder`) calls it with normed rows; it calls `attend`, which owns caches and backends.

INVARIANT: rows meet nowhere but in `attend`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from asyncpage.backends.contract import AttentionSpec
from asyncpage.models.layers import RowMap
from asyncpage.models.model import Attend
from asyncpage.models.rope import Angles, turn


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a layer asks of its cache and its mask, in the words of `AttentionSpec`; layers of one shape are a group."""

    q_heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int = 0
    softcap: float = 0.0
    kind: Literal["mha", "mla"] = "mha"
    sinks: bool = False

    def spec(self, dtype: torch.dtype, kv_dtype: str, block_size: int) -> AttentionSpec:
        """The question to a backend, for activations of `dtype` and a cache of `kv_dtype`."""
        return AttentionSpec(
            kind=self.kind,
            q_heads=self.q_heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.v_head_dim,
            dtype=str(dtype).removeprefix("torch."),
            kv_dtype=kv_dtype,
            block_size=block_size,
            window=self.window,
            softcap=self.softcap,
            sinks=self.sinks,
        )


class AttentionPart(Protocol):
    """Any kind of attention. `scale`: what scores are multiplied by."""

    @property
    def shape(self) -> AttentionShape: ...

    @property
    def scale(self) -> float: ...

    def __call__(self, x_TE: Tensor, angles: Sequence[Angles], attend: Attend) -> Tensor:
        """Rows [T, E] to rows [T, E]. `angles`: of this step's positions, for each of the decoder's ropes."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SelfAttention:
    """Grouped-query attention (Ainslie et al. 2023) of the layer with index `layer`.

    `qkv`: one product for queries, keys and values, in this order. `rope`: which of the decoder's ropes turns queries
    and keys, None for no positions. `qk_norm` maps [T, q_heads + kv_heads, D], queries and keys side by side.
    """

    layer: int
    shape: AttentionShape
    scale: float
    qkv: RowMap
    output: RowMap
    rope: int | None = 0
    qk_norm: RowMap | None = None

    def __call__(self, x_TE: Tensor, angles: Sequence[Angles], attend: Attend) -> Tensor:
        shape, tokens = self.shape, len(x_TE)
        q_heads, turned = shape.q_heads, shape.q_heads + shape.kv_heads
        qkv = self.qkv(x_TE).view(tokens, turned + shape.kv_heads, shape.head_dim)
        # Queries and keys lie side by side, so that one norm and one turn serve both.
        qk = qkv[:, :turned]
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        if self.rope is not None:
            qk = turn(qk, angles[self.rope])
        out_THD = attend(self.layer, qk[:, :q_heads], qk[:, q_heads:], qkv[:, turned:])
        return self.output(out_THD.reshape(tokens, q_heads * shape.head_dim))
