"""Attention on a CPU with torch alone: gather a few sequences' caches into scratch memory, then one fused call.

A row with one token joins up to seven others of like length in a padded gather; a row with more tokens (a prefill
chunk, a verification) is gathered alone and attends under a mask. All arithmetic is float32, whatever the cache holds.

INVARIANT: a padded position repeats one of its own sequence's tokens under a -inf mask, so a row's result is made
of its own tokens only, NaN in anybody else's block or row notwithstanding.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from asyncpage.backends.contract import (
    AttentionSpec,
    Batch,
    DeviceInfo,
    GraphSupport,
    KVLayout,
    LayerParams,
    Limits,
    PlanSlot,
)
from asyncpage.backends.cpu_plan import CpuPlan, Piece, Workspace, cut
from asyncpage.backends.spec_kinds import cpu_refusals, sides
from asyncpage.errors import ExecutorError

# Score matrices of the explicit path are cut into query tiles of at most this many items (16 MiB of float32).
_TILE_ITEMS = 1 << 22


class CpuBackend:
    """Padded gathers and torch's fused attention, float32 arithmetic."""

    api: ClassVar[int] = 2
    name: ClassVar[str] = "cpu"
    graph: ClassVar[GraphSupport] = GraphSupport.NEVER

    @classmethod
    def unsupported(cls, spec: AttentionSpec, device: DeviceInfo) -> list[str]:
        """Refuses accelerators, other kinds than causal multi-head and latent attention, and quantised caches."""
        return cpu_refusals(spec, device)

    @classmethod
    def kv_layout(cls, spec: AttentionSpec, device: DeviceInfo) -> KVLayout:
        """[keys and values, heads, blocks, tokens, head size]: a gather of one head's blocks is its whole context.

        Latent rows are keys and values at once.
        """
        return KVLayout((sides(spec), spec.kv_heads, -1, spec.block_size, spec.head_dim), spec.kv_dtype)

    def __init__(self, spec: AttentionSpec, device: DeviceInfo, limits: Limits) -> None:
        self._spec = spec
        self._group = spec.q_heads // spec.kv_heads
        # The fused call knows neither of these, returns no logsumexp, and would repeat a latent row for every head.
        is_latent = spec.kind == "mla"
        self._is_explicit = bool(is_latent or spec.softcap or spec.alibi or spec.sinks or spec.need_lse)

    def workspace_bytes(self, limits: Limits) -> int:
        """One gather: the longest sequence's cache, or a full chunk of short ones', in cache dtype and in float32."""
        return Workspace.bytes_needed(self._spec, limits)

    def plan(self, batch: Batch, workspace: Tensor, slot: PlanSlot | None = None) -> CpuPlan:
        """Cut the batch into gathers, with every index, mask and buffer view that layers need.

        Errors: `ExecutorError` for a tree mask.
        """
        if batch.mask is not None:
            raise ExecutorError("the cpu attention backend takes no tree mask; run without tree drafts")
        return cut(self._spec, batch, Workspace(self._spec, workspace), needs_distance=self._is_explicit)

    def write_kv(self, k: Tensor, v: Tensor, kv: Tensor, plan: CpuPlan, params: LayerParams) -> None:
        """Store the step's keys and values in one scatter over slots."""
        both = k if self._spec.kind == "mla" else torch.cat((k, v), dim=1)
        if plan.write_rows is not None:
            both = both.index_select(0, plan.write_rows)
        self._tokens(kv).index_copy_(1, plan.write_slots, both.transpose(0, 1).to(kv.dtype))

    def run(
        self, q: Tensor, kv: Tensor, out: Tensor, plan: CpuPlan, params: LayerParams, lse: Tensor | None = None
    ) -> None:
        """Attend piece by piece."""
        if len(out) > plan.n_tokens:
            out[plan.n_tokens :].zero_()
            if lse is not None:
                lse[plan.n_tokens :].zero_()
        cache = self._tokens(kv)
        for piece in plan.pieces:
            torch.index_select(cache, 1, piece.index, out=piece.gathered)
            if piece.widened is not None:
                piece.widened.copy_(piece.gathered)
            queries = q.index_select(0, piece.rows).float()
            if self._is_explicit:
                self._attend_explicitly(queries, piece, out, params, lse)
            elif piece.queries == 1:
                # Heads that share a key head stand where queries stand, so that no key is repeated.
                grouped = queries.view(piece.sequences, self._spec.kv_heads, self._group, self._spec.head_dim)
                found = functional.scaled_dot_product_attention(
                    grouped, piece.keys, piece.values, attn_mask=piece.mask, scale=params.scale
                )
                found = found.reshape_as(queries).add_(_nan_of(queries))
                out.index_copy_(0, piece.rows, found.to(out.dtype))
            else:
                found = functional.scaled_dot_product_attention(
                    queries.transpose(0, 1)[None],
                    piece.keys,
                    piece.values,
                    attn_mask=piece.mask,
                    is_causal=piece.mask is None,
                    scale=params.scale,
                    enable_gqa=self._group > 1,
                )
                found = found[0].transpose(0, 1).add_(_nan_of(queries))
                out.index_copy_(0, piece.rows, found.to(out.dtype))

    def copy_tokens(self, kv: Tensor, copies: Tensor) -> None:
        """Read all sources, then write, slot by slot."""
        counts = copies[:, 2]
        begins = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        offsets = torch.arange(len(begins)) - begins
        sources, destinations = torch.repeat_interleave(copies[:, :2] * self._spec.block_size, counts, dim=0).T
        cache = self._tokens(kv)
        cache.index_copy_(1, destinations + offsets, cache.index_select(1, sources + offsets))

    def _tokens(self, kv: Tensor) -> Tensor:
        """The cache as [keys of each head, then values of each head; slots; head size]."""
        return kv.view(sides(self._spec) * self._spec.kv_heads, -1, self._spec.head_dim)

    def _attend_explicitly(
        self, queries_RHD: Tensor, piece: Piece, out: Tensor, params: LayerParams, lse: Tensor | None
    ) -> None:
        """Scores, softcap, ALiBi, mask, sinks and softmax by hand, a tile of queries at a time.

        Axes: N sequences of the piece, G key heads, J query heads of a key head, C queries, L keys.
        """
        n, queries = piece.sequences, piece.queries
        g, j, d = self._spec.kv_heads, self._group, self._spec.head_dim
        heads = n * g * j * piece.keys.shape[2]
        tile = max(1, min(queries, _TILE_ITEMS // heads))
        rows_NC = piece.rows.view(n, queries)
        q_NGJCD = queries_RHD.view(n, queries, g, j, d).permute(0, 2, 3, 1, 4)
        for start in range(0, queries, tile):
            part = slice(start, min(start + tile, queries))
            width = part.stop - part.start
            q = q_NGJCD[:, :, :, part].reshape(n, g, j * width, d)
            scores = (q @ piece.keys.transpose(-1, -2)).mul_(params.scale).view(n, g, j, width, -1)
            if self._spec.softcap:
                scores = scores.div_(self._spec.softcap).tanh_().mul_(self._spec.softcap)
            if piece.distance is not None and params.slopes is not None:
                scores += params.slopes.view(g, j, 1, 1) * piece.distance[:, :, None, part]
            if piece.mask is not None:
                scores += piece.mask[:, :, None, part]
            denominator = torch.logsumexp(scores, dim=-1, keepdim=True)
            if params.sinks is not None:
                denominator = torch.logaddexp(denominator, params.sinks.view(g, j, 1, 1))
            weights = scores.sub_(denominator).exp_().view(n, g, j * width, -1)
            found = (weights @ piece.values).view(n, g, j, width, -1).permute(0, 3, 1, 2, 4)
            rows = rows_NC[:, part].reshape(-1)
            out.index_copy_(0, rows, found.reshape(-1, g * j, self._spec.v_head_dim).to(out.dtype))
            if lse is not None:
                lse.index_copy_(0, rows, denominator[..., 0].permute(0, 3, 1, 2).reshape(-1, g * j))


def _nan_of(queries_RHD: Tensor) -> Tensor:
    """[R, H, 1]: zero, NaN for a query that holds one. With AVX-512 torch's attention makes zeros of such a query's
    scores, as if all keys were masked."""
    return queries_RHD.mul(0.0).sum(-1, keepdim=True)
