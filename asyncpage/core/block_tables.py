"""Which blocks each running row holds, in columns, and the moves that change that.

The settlement decides; this carries it out. One table a layer group, indexed by position // block size, so an entry
behind a window is 0 (nobody looks there). A block that a step in flight names returns to the pool only when that
step is back.

INVARIANT: a row writes only into blocks that it alone holds and that have no name. A row that joins with a cached
beginning starts on a fresh block; one that forks a sibling copies the block it will write when it joins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncpage.core.block_pool import BlockPool
from asyncpage.core.prefix_chain import PrefixChain, extend_chain
from asyncpage.messages import FilledBlocks, Int32, LayerGroup


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where every block is. `blank` + `cached` + `referenced` = `total`, always."""

    total: int
    blank: int
    cached: int
    referenced: int
    leaving: int  # referenced only because a step in flight may still name them


class BlockTables:
    """Rows' block tables over one pool.

    `tables` [G, rows, width] block ids; `held` [rows] entries in use, the same in every group.
    """

    def __init__(
        self, *, blocks: int, block_size: int, groups: Sequence[LayerGroup], rows: int, max_tokens: int
    ) -> None:
        self.block_size = block_size
        self.groups = tuple(groups)
        self.index = PrefixChain(groups, block_size)
        self.pool = BlockPool(blocks, self.index)
        width = -(-max_tokens // block_size)
        self.tables: NDArray[np.int32] = np.zeros((len(groups), rows, width), dtype=np.int32)
        self.held: NDArray[np.int32] = np.zeros(rows, dtype=np.int32)
        self.last_step: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self._behind: NDArray[np.int32] = np.zeros(
            (len(groups), rows), dtype=np.int32
        )  # entries already dropped behind the window
        self._names: list[list[bytes]] = [[] for _ in range(rows)]
        self._roots: list[bytes] = [b""] * rows
        self._feeds: list[bool] = [False] * rows
        self._leaving: deque[tuple[int, tuple[int, ...]]] = deque()
        self.has_window = any(group.kind == "window" for group in groups)

    def entries(self, tokens: int) -> int:
        """Table entries that `tokens` tokens need."""
        return -(-tokens // self.block_size)

    def reset(self, *, forget: bool) -> None:
        """No row exists and no step is in flight; with `forget` the contents of every block are gone too."""
        if forget:
            self._leaving.clear()
            self.pool.reset()
            self.held[:] = 0
        else:
            for row in np.flatnonzero(self.held).tolist():
                self.release(row, returned=int(self.last_step[row]))
            self.collect(returned=np.iinfo(np.int64).max)

    def open(self, row: int, *, root: bytes, names: Sequence[bytes], feeds: bool) -> None:
        """A row begins a life without blocks."""
        self.held[row] = 0
        self._behind[:, row] = 0
        self._roots[row] = root
        self._names[row] = list(names)
        self._feeds[row] = feeds

    def adopt(self, row: int, blocks: Sequence[Sequence[int]]) -> None:
        """An open row shares blocks that hold the beginning of its tokens: one sequence a group, equally long."""
        length = len(blocks[0])
        for group, ids in enumerate(blocks):
            self.pool.share(ids)
            self.tables[group, row, :length] = ids
        self.held[row] = length

    def can_fork(self, row: int, tokens: int) -> bool:
        """Whether the row still holds all that a sibling after its first `tokens` tokens will look at."""
        return all(
            self.index.first_needed(group, tokens) >= int(self._behind[group, row])
            for group, spec in enumerate(self.groups)
            if spec.kind == "window"
        )

    def beginning(self, row: int, tokens: int) -> list[list[int]]:
        """The row's blocks that hold its first `tokens` tokens, one list a group."""
        ids: list[list[int]] = self.tables[:, row, : self.entries(tokens)].tolist()
        return ids

    def extend(self, rows: Int32, entries: Int32) -> Int32:
        """Give each row `entries` further blocks in every group; the caller has checked the pool.

        Returns [N, 4] columns row, group, index, block.
        """
        total = int(entries.sum())
        new = np.empty((total * len(self.groups), 4), dtype=np.int32)
        if total == 0:
            return new
        new_rows = np.repeat(rows, entries)
        offsets = np.arange(total, dtype=np.int32) - np.repeat(np.cumsum(entries, dtype=np.int32) - entries, entries)
        indices = self.held[new_rows] + offsets
        for group in range(len(self.groups)):
            part = new[group * total : (group + 1) * total]
            part[:, 0] = new_rows
            part[:, 1] = group
            part[:, 2] = indices
            part[:, 3] = self.pool.take(total)
            self.tables[group, new_rows, indices] = part[:, 3]
        self.held[rows] += entries
        return new

    def copy_last(self, row: int, step: int) -> list[tuple[int, int]]:
        """Copy on write: fresh blocks take the place of the row's last ones. Returns (source, destination) a group.

        The sources stay referenced until `step`, which copies them before it writes, is back.
        """
        index = int(self.held[row]) - 1
        pairs = []
        for group in range(len(self.groups)):
            source = int(self.tables[group, row, index])
            destination = self.pool.take(1)[0]
            self.tables[group, row, index] = destination
            self._leaving.append((step, (source,)))
            pairs.append((source, destination))
        return pairs

    def drop_behind_window(self, row: int, computed: int, step: int) -> list[tuple[int, int, int, int]]:
        """Let go of blocks that no token from `computed` on can see; `step` is the first that does not name them.

        Returns the table's changes as (row, group, index, 0).
        """
        changes = []
        for group, spec in enumerate(self.groups):
            if spec.kind == "full":
                continue
            begin = int(self._behind[group, row])
            end = self.index.first_needed(group, computed)
            ids = tuple(block for block in self.tables[group, row, begin:end].tolist() if block)
            if ids:
                self._leaving.append((step - 1, ids))
                self.tables[group, row, begin:end] = 0
                changes += [(row, group, index, 0) for index in range(begin, end)]
            self._behind[group, row] = max(begin, end)
        return changes

    def release(self, row: int, *, returned: int) -> None:
        """The row's life ends: its blocks go back, tail first, at once or when the last step naming them is back."""
        held = int(self.held[row])
        ids = tuple(
            block
            for index in range(held - 1, -1, -1)
            for group in range(len(self.groups))
            if (block := int(self.tables[group, row, index]))
        )
        self.held[row] = 0
        if int(self.last_step[row]) > returned:
            self._leaving.append((int(self.last_step[row]), ids))
        else:
            self.pool.drop(ids)

    def collect(self, *, returned: int) -> None:
        """Give back what only steps up to `returned` still named."""
        waiting = self._leaving
        for _ in range(len(waiting)):
            step, ids = waiting.popleft()
            if step <= returned:
                self.pool.drop(ids)
            else:
                waiting.append((step, ids))

    @property
    def leaving(self) -> int:
        """Blocks (at most) that come back when the steps in flight do."""
        return sum(len(ids) for _, ids in self._leaving)

    def name(self, filled: FilledBlocks) -> None:
        """Blocks of a row are full of computed, accepted tokens: extend its chain and publish them."""
        row = filled.row
        if not self._feeds[row]:
            return
        names = self._names[row]
        if filled.tokens:
            names += extend_chain(names[-1] if names else self._roots[row], filled.tokens, self.block_size)
        for index in range(filled.first, filled.last):
            for group in range(len(self.groups)):
                block = int(self.tables[group, row, index])
                if block and not self.index.holds(block):
                    self.index.publish(group, names[index], block)

    def ledger(self) -> Ledger:
        """Where every block is, counted afresh."""
        return Ledger(
            total=self.pool.total,
            blank=self.pool.free - self.pool.cached,
            cached=self.pool.cached,
            referenced=self.pool.referenced(),
            leaving=len({block for _, ids in self._leaving for block in ids}),
        )
