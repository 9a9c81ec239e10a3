"""Attention as its definition reads: one sequence, one head, one plain softmax at a time, in float64.

The oracle that other backends and models are compared with. Speed was not considered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from asyncpage.backends.contract import (
    ITEM_BYTES,
    AttentionSpec,
    Batch,
    DeviceInfo,
    GraphSupport,
    KVLayout,
    LayerParams,
    Limits,
    PlanSlot,
)
from asyncpage.backends.spec_kinds import refusals, sides
from asyncpage.errors import ExecutorError


@dataclass(frozen=True, slots=True, eq=False)
class SequencePlan:
    """One sequence of the step: its tokens are rows `first` to `last`, the last of `length` in `blocks`."""

    first: int
    last: int
    length: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ReferencePlan:
    """The step's sequences, and block and offset of each real slot with the token it takes."""

    sequences: tuple[SequencePlan, ...]
    writes: tuple[tuple[int, int, int], ...]  # token, block, offset


class ReferenceBackend:
    """Plain float64 softmax, one head at a time: the oracle, slow anywhere."""

    api: ClassVar[int] = 2
    name: ClassVar[str] = "reference"
    graph: ClassVar[GraphSupport] = GraphSupport.NEVER

    @classmethod
    def unsupported(cls, spec: AttentionSpec, device: DeviceInfo) -> list[str]:
        """Refuses other kinds than causal multi-head and latent attention, and quantised caches."""
        return refusals(spec, ITEM_BYTES)

    @classmethod
    def kv_layout(cls, spec: AttentionSpec, device: DeviceInfo) -> KVLayout:
        """[blocks, tokens of a block, keys and values, heads, head size]: a token's KV lies together.

        Latent rows are keys and values at once.
        """
        return KVLayout((-1, spec.block_size, sides(spec), spec.kv_heads, spec.head_dim), spec.kv_dtype)

    def __init__(self, spec: AttentionSpec, device: DeviceInfo, limits: Limits) -> None:
        self._spec = spec

    def workspace_bytes(self, limits: Limits) -> int:
        """None is needed."""
        return 0

    def plan(self, batch: Batch, workspace: Tensor, slot: PlanSlot | None = None) -> ReferencePlan:
        """Cut the batch into sequences. Errors: `ExecutorError` for a tree mask."""
        if batch.mask is not None:
            raise ExecutorError("the reference attention backend takes no tree mask; run without tree drafts")
        size = self._spec.block_size
        sequences = []
        for index in range(batch.n_seqs):
            first, last = int(batch.cu_q_host[index]), int(batch.cu_q_host[index + 1])
            length = int(batch.kv_len_host[index])
            blocks = batch.block_table[index, : -(-length // size)].tolist()
            if last > first:
                sequences.append(SequencePlan(first, last, length, tuple(blocks)))
        slots = enumerate(batch.slots[: batch.n_tokens].tolist())
        writes = tuple((token, slot // size, slot % size) for token, slot in slots if slot >= 0)
        return ReferencePlan(tuple(sequences), writes)

    def write_kv(self, k: Tensor, v: Tensor, kv: Tensor, plan: ReferencePlan, params: LayerParams) -> None:
        """Store token by token, rounded to the cache's dtype."""
        for token, block, offset in plan.writes:
            kv[block, offset, 0] = k[token].to(kv.dtype)
            if self._spec.kind != "mla":
                kv[block, offset, 1] = v[token].to(kv.dtype)

    def run(
        self, q: Tensor, kv: Tensor, out: Tensor, plan: ReferencePlan, params: LayerParams, lse: Tensor | None = None
    ) -> None:
        """Attend head by head."""
        out.zero_()
        if lse is not None:
            lse.zero_()
        group = self._spec.q_heads // self._spec.kv_heads
        for sequence in plan.sequences:
            rows = slice(sequence.first, sequence.last)
            first_position = sequence.length - (sequence.last - sequence.first)
            positions = torch.arange(first_position, sequence.length, device=q.device)
            start = self._first_visible(first_position)
            keys_LGD, values_LGD = self._cached(kv, sequence, start)
            for head in range(self._spec.q_heads):
                keys, values = keys_LGD[:, head // group], values_LGD[:, head // group]
                scores = self._scores(q[rows, head].double(), keys, positions, start, head, params)
                denominator = torch.logsumexp(scores, dim=-1, keepdim=True)
                if params.sinks is not None:
                    denominator = torch.logaddexp(denominator, params.sinks[head].double())
                out[rows, head] = (torch.exp(scores - denominator) @ values).to(out.dtype)
                if lse is not None:
                    lse[rows, head] = denominator[:, 0].to(lse.dtype)

    def copy_tokens(self, kv: Tensor, copies: Tensor) -> None:
        """Read all sources, then write."""
        listed = copies.tolist()
        held = [kv[source, :tokens].clone() for source, _, tokens in listed]
        for (_, destination, tokens), contents in zip(listed, held, strict=True):
            kv[destination, :tokens] = contents

    def _first_visible(self, position: int) -> int:
        """The first position that a query at `position`, or later, sees; blocks before it may be junk."""
        return max(0, position + 1 - self._spec.window) if self._spec.window else 0

    def _cached(self, kv: Tensor, sequence: SequencePlan, start: int) -> tuple[Tensor, Tensor]:
        """Keys [length - start, kv_heads, head_dim] and values (v_head_dim), in the order of positions."""
        skipped, offset = divmod(start, self._spec.block_size)
        tokens = kv[list(sequence.blocks[skipped:])].flatten(0, 1)[offset : offset + sequence.length - start]
        return tokens[:, 0].double(), tokens[:, -1, :, : self._spec.v_head_dim].double()

    def _scores(self, q: Tensor, keys: Tensor, positions: Tensor, start: int, head: int, params: LayerParams) -> Tensor:
        """Logits [queries, keys], -inf where a query may not look."""
        scores = params.scale * (q @ keys.T)
        if self._spec.softcap:
            scores = self._spec.softcap * torch.tanh(scores / self._spec.softcap)
        distance = torch.arange(start, start + len(keys), device=q.device)[None, :] - positions[:, None]
        if params.slopes is not None:
            scores = scores + params.slopes[head].double() * distance
        hidden = distance > 0
        if self._spec.window:
            hidden |= distance <= -self._spec.window
        return scores.masked_fill(hidden, -torch.inf)
