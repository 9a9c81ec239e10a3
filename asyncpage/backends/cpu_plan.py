"""The CPU backend's step plan: which sequences are gathered together, by which indices, under which masks.

Made once a step on the host from the batch, used by every layer. Cutting follows lengths only.

INVARIANT: every index names a token of its own sequence that is visible to one of the piece's queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncpage.backends.contract import ITEM_BYTES, AttentionSpec, Batch, Limits
from asyncpage.backends.spec_kinds import sides

# Padded gathers win up to 8 sequences; a gather of 2 MiB stays close to the caches while it is used, and beyond a
# quarter of padding one more call is cheaper than the padding.
MAX_SEQUENCES = 8
MAX_GATHER_BYTES = 2 << 20
MAX_PADDING = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Sequences that are gathered together: `sequences` (N) of `queries` (C) tokens each, padded to L keys.

    `rows` [N * C]: their tokens in the batch. `index` [N * L]: the slots to gather. `gathered` [sides * kv_heads,
    N * L, head_dim] in the cache's dtype; `widened`: the same in float32, None when it is float32 already; `keys`,
    `values`: views of it, [N, kv_heads, L, head_dim] and v_head_dim. `mask` [N, 1, C, L]: 0 or -inf, None for plain
    causal. `distance`: key position minus query position, in the mask's shape, where the spec needs it.
    """

    sequences: int
    queries: int
    rows: Tensor
    index: Tensor
    gathered: Tensor
    widened: Tensor | None
    keys: Tensor
    values: Tensor
    mask: Tensor | None
    distance: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class CpuPlan:
    """One step: its pieces, and where its tokens' KV goes (`write_rows` None: all rows)."""

    n_tokens: int
    pieces: tuple[Piece, ...]
    write_rows: Tensor | None
    write_slots: Tensor


class Workspace:
    """Views over the scratch memory that the engine owns: one gather in cache dtype, one in float32."""

    def __init__(self, spec: AttentionSpec, memory: Tensor) -> None:
        self._sides, self._heads, self._head_dim = sides(spec), spec.kv_heads, spec.head_dim
        self._v_head_dim = spec.v_head_dim
        self._kv_dtype = getattr(torch, spec.kv_dtype)
        item = ITEM_BYTES[spec.kv_dtype]
        is_narrow = self._kv_dtype != torch.float32
        capacity = len(memory) // (_token_items(spec) * (item + 4 * is_narrow))
        split = capacity * _token_items(spec) * item
        self._gathered = memory[:split].view(self._kv_dtype)
        self._widened = (
            memory[split : split + capacity * _token_items(spec) * 4].view(torch.float32) if is_narrow else None
        )

    @staticmethod
    def bytes_needed(spec: AttentionSpec, limits: Limits) -> int:
        """Memory for the greatest gather that `cut` may ask for."""
        item = ITEM_BYTES[spec.kv_dtype]
        per_token = _token_items(spec) * (item + (4 if spec.kv_dtype != "float32" else 0))
        return max(_visible(spec, limits.max_kv, limits.max_tokens), _gather_tokens(spec)) * per_token

    def views(self, sequences: int, length: int) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """`gathered`, `widened`, `keys` and `values` of a piece."""
        shape = (self._sides * self._heads, sequences * length, self._head_dim)
        items = shape[0] * shape[1] * shape[2]
        gathered = self._gathered[:items].view(shape)
        widened = None if self._widened is None else self._widened[:items].view(shape)
        wide = gathered if widened is None else widened
        both = wide.view(self._sides, self._heads, sequences, length, self._head_dim).transpose(1, 2)
        return gathered, widened, both[0], both[-1][..., : self._v_head_dim]


def cut(spec: AttentionSpec, batch: Batch, workspace: Workspace, *, needs_distance: bool) -> CpuPlan:
    """Cut a batch into pieces: single tokens by like length, longer runs of tokens alone.

    `needs_distance`: pieces carry `distance`, and a mask also where plain causal would do.
    """
    queries = np.diff(batch.cu_q_host[: batch.n_seqs + 1])
    lengths = batch.kv_len_host[: batch.n_seqs]
    # A query at position p sees keys from p + 1 - window on.
    first = np.maximum(lengths - queries + 1 - spec.window, 0) if spec.window else np.zeros_like(lengths)
    cutter = _Cutter(spec, batch, workspace, lengths, first)
    singles = np.flatnonzero(queries == 1)
    singles = singles[np.argsort((lengths - first)[singles], kind="stable")]
    groups = _groups((lengths - first)[singles].tolist(), _gather_tokens(spec))
    pieces = [cutter.singles(singles[start:end], needs_distance) for start, end in groups]
    pieces += [cutter.chunk(int(index), int(queries[index]), needs_distance) for index in np.flatnonzero(queries > 1)]
    is_real = batch.slots >= 0
    if bool(is_real.all()):
        return CpuPlan(batch.n_tokens, tuple(pieces), None, batch.slots)
    rows = is_real.nonzero()[:, 0]
    return CpuPlan(batch.n_tokens, tuple(pieces), rows, batch.slots[rows])


def _groups(lengths: list[int], most_tokens: int) -> Iterator[tuple[int, int]]:
    """Cut ascending `lengths` into runs that are worth padding to their last; yields (start, end)."""
    start = total = 0
    for at, length in enumerate(lengths):
        count = at - start
        padded = (count + 1) * length
        if count and (count == MAX_SEQUENCES or padded > most_tokens or padded - total - length > MAX_PADDING * padded):
            yield start, at
            start, total = at, 0
        total += length
    if lengths:
        yield start, len(lengths)


class _Cutter:
    """Makes pieces of one batch. `first` [n_seqs]: the first position that a sequence's queries see."""

    def __init__(
        self,
        spec: AttentionSpec,
        batch: Batch,
        workspace: Workspace,
        lengths: NDArray[np.int32],
        first: NDArray[np.int32],
    ) -> None:
        self._spec = spec
        self._starts = batch.cu_q_host
        self._table = batch.block_table.numpy()
        self._workspace = workspace
        self._lengths = lengths
        self._first = first

    def singles(self, sequences: NDArray[np.intp], needs_distance: bool) -> Piece:
        """Sequences with one token each, which sees all that is gathered but the padding."""
        spans = (self._lengths - self._first)[sequences]
        steps = np.arange(spans.max())
        is_real = steps < spans[:, None]
        positions = self._first[sequences, None] + np.where(is_real, steps, 0)
        mask = distance = None
        if not is_real.all():
            mask = torch.zeros(is_real.shape).masked_fill_(torch.from_numpy(~is_real), -torch.inf)
        if needs_distance:
            distance = torch.from_numpy(positions - (self._lengths[sequences, None] - 1)).float()
        rows = torch.from_numpy(self._starts[sequences].astype(np.int64))
        return self._piece(sequences, 1, rows, positions, mask, distance)

    def chunk(self, sequence: int, queries: int, needs_distance: bool) -> Piece:
        """One sequence with several tokens, each of which sees up to itself and back to its window."""
        length, first = int(self._lengths[sequence]), int(self._first[sequence])
        positions = np.arange(first, length)
        mask = distance = None
        window = self._spec.window
        if needs_distance or queries < length or 0 < window < queries:
            distance = torch.arange(first, length)[None, :] - torch.arange(length - queries, length)[:, None]
            hidden = distance > 0
            if window:
                hidden |= distance <= -window
            mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        rows = torch.arange(queries) + int(self._starts[sequence])
        kept = distance.float() if needs_distance and distance is not None else None
        return self._piece(np.array([sequence]), queries, rows, positions[None, :], mask, kept)

    def _piece(
        self,
        sequences: NDArray[np.intp],
        queries: int,
        rows: Tensor,
        positions: NDArray[np.integer[Any]],
        mask: Tensor | None,
        distance: Tensor | None,
    ) -> Piece:
        size = self._spec.block_size
        blocks = self._table[sequences[:, None], positions // size].astype(np.int64)
        index = torch.from_numpy((blocks * size + positions % size).reshape(-1))
        count, length = positions.shape
        shape = (count, 1, queries, length)
        return Piece(
            count,
            queries,
            rows,
            index,
            *self._workspace.views(count, length),
            None if mask is None else mask.view(shape),
            None if distance is None else distance.view(shape),
        )


def _token_items(spec: AttentionSpec) -> int:
    return sides(spec) * spec.kv_heads * spec.head_dim


def _gather_tokens(spec: AttentionSpec) -> int:
    return max(1, MAX_GATHER_BYTES // (4 * _token_items(spec)))


def _visible(spec: AttentionSpec, max_kv: int, max_queries: int) -> int:
    """The most tokens of one sequence that a step's queries see."""
    return min(max_kv, spec.window + max_queries - 1) if spec.window else max_kv
