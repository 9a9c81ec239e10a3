"""Packs one step's rows into what the model and attention read: tokens, positions, lengths, tables and slots.

The runner asks once a step; buffers are made once, and on a CPU the tensors are views of them.

INVARIANT: every token is written to a slot of a block that is not block 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from asyncpage.backends.contract import Batch
from asyncpage.errors import ProtocolError
from asyncpage.executor.batch import BatchShape, PersistentBatch
from asyncpage.messages import Int32


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """One step, packed. `tokens`, `positions`: int64 [T] on the device; `starts` [R + 1]: where each row's tokens lie.

    `batches`: one a layer group. Valid until the next step.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    starts: Int32
    batches: tuple[Batch, ...]


class InputBuffers:
    """Host columns of the greatest step, written anew for each. `tables`: by the model's groups, those of the batch."""

    def __init__(self, shape: BatchShape, device: torch.device, tables: Sequence[int] | None = None) -> None:
        self._tables = list(range(shape.groups)) if tables is None else list(tables)
        self._block_size = shape.block_size
        self._device, self._is_here = device, device.type == "cpu"
        self._tokens: NDArray[np.int64] = np.zeros(shape.max_tokens, dtype=np.int64)
        self._positions: NDArray[np.int64] = np.zeros(shape.max_tokens, dtype=np.int64)
        self._slots: NDArray[np.int64] = np.zeros((len(self._tables), shape.max_tokens), dtype=np.int64)
        self._starts: Int32 = np.zeros(shape.max_rows + 1, dtype=np.int32)
        self._lengths: Int32 = np.zeros(shape.max_rows, dtype=np.int32)
        self._order: NDArray[np.int64] = np.arange(shape.max_tokens)

    def pack(self, batch: PersistentBatch, rows: Int32, counts: Int32, begins: Int32 | None = None) -> Inputs:
        """`counts` [R] tokens of `rows` [R], one row after the other, from `begins` [R] on or the next to compute.

        Errors: `ProtocolError`.
        """
        n, size = len(rows), self._block_size
        starts, lengths = self._starts[: n + 1], self._lengths[:n]
        np.cumsum(counts, out=starts[1:])
        total = int(starts[n])
        tokens, positions = self._tokens[:total], self._positions[:total]
        computed = batch.computed[rows] if begins is None else begins
        np.add(computed, counts, out=lengths)
        if total == n:
            owners = rows
            positions[:] = computed
        else:
            owners = np.repeat(rows, counts)
            np.subtract(self._order[:total], np.repeat(starts[:n] - computed, counts), out=positions)
        tokens[:] = batch.tokens[owners, positions]
        blocks, offsets = np.divmod(positions, size)
        longest = int(lengths.max())
        width = -(-longest // size)
        cu_q, kv_len = self._on_device(starts), self._on_device(lengths)
        max_q = int(counts.max())
        batches = []
        for group, slots in zip(self._tables, self._slots[:, :total], strict=True):
            table = batch.tables[group]
            np.multiply(table[owners, blocks], size, out=slots)
            if slots.min() < size:
                raise ProtocolError("a step computes a token whose block it never named")
            slots += offsets
            batches.append(
                Batch(
                    n_seqs=n,
                    n_tokens=total,
                    max_q=max_q,
                    max_kv=longest,
                    cu_q_host=starts,
                    kv_len_host=lengths,
                    cu_q=cu_q,
                    kv_len=kv_len,
                    block_table=self._on_device(table[rows, :width]),
                    slots=self._on_device(slots),
                    uniform_q=max_q if max_q * n == total else None,
                )
            )
        return Inputs(self._on_device(tokens), self._on_device(positions), starts, tuple(batches))

    def _on_device(self, column: NDArray[np.int32] | NDArray[np.int64]) -> torch.Tensor:
        found = torch.from_numpy(column)
        return found if self._is_here else found.to(self._device)
