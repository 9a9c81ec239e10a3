"""Settles one step over memory: who gets tokens and blocks, at whose expense, and who is let in.

One pure function of the tables and a `Reserve`; the KV manager calls it, the scheduler reads the `Granted`.
Running pass: every running row in order asks for its tokens, clipped by the budget; when blocks run out the next
victim is preempted. Waiting pass, only in a step that preempted nobody: candidates in order, until budget, rows or
blocks above the watermark run out; the first that does not fit ends the pass, so nobody is overtaken.

INVARIANT: a step never grants more tokens than the budget, nor a token without a block to write it to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from asyncpage.core.block_tables import BlockTables
from asyncpage.messages import EMPTY_BLOCKS, EMPTY_PAIRS, Admission, Candidate, Granted, Int32, Reserve


@dataclass(frozen=True, slots=True)
class Rules:
    """What stays the same from step to step. `long_prefill_tokens` 0 sets no limit."""

    chunked_prefill: bool = True
    long_prefill_tokens: int = 0
    watermark_blocks: int = 0


def settle(tables: BlockTables, rules: Rules, reserve: Reserve) -> Granted:
    """Apply what has ended and filled, then both passes. Updates `tables`; a pure function of its arguments."""
    tables.collect(returned=reserve.returned)
    for filled in reserve.filled:
        tables.name(filled)
    for row in reserve.released:
        tables.release(row, returned=reserve.returned)

    running = _Running(tables, reserve)
    running.settle()
    admitted: list[Admission] = []
    copies: list[tuple[int, int]] = []
    if not running.victims:
        budget = reserve.budget_tokens - int(running.counts.sum())
        _let_in(tables, rules, reserve, budget, admitted, copies)

    keep = running.counts > 0
    rows = reserve.rows[keep]
    counts = running.counts[keep]
    tables.last_step[rows] = reserve.number
    if admitted:
        rows = np.concatenate([rows, np.array([a.row for a in admitted], dtype=np.int32)])
        counts = np.concatenate([counts, np.array([a.count for a in admitted], dtype=np.int32)])
    return Granted(
        number=reserve.number,
        rows=rows,
        counts=counts,
        blocks=running.changes(),
        copies=np.array(copies, dtype=np.int32).reshape(-1, 2) if copies else EMPTY_PAIRS,
        victims=tuple(running.victims),
        admitted=tuple(admitted),
        free_blocks=tables.pool.free,
    )


class _Running:
    """The running pass. Steady decode takes the columns' way; only a shortage goes row by row."""

    def __init__(self, tables: BlockTables, reserve: Reserve) -> None:
        self.tables = tables
        self.reserve = reserve
        self.victims: list[int] = []
        self._blocks: list[Int32] = []
        before = np.cumsum(reserve.wants) - reserve.wants
        self.counts: Int32 = np.clip(reserve.budget_tokens - before, 0, reserve.wants).astype(np.int32)

    def settle(self) -> None:
        tables, reserve = self.tables, self.reserve
        if not len(reserve.rows):
            return
        if tables.has_window:
            self._drop_behind_windows()
        entries = self._missing(reserve.rows, reserve.computed + self.counts)
        if int(entries.sum()) * len(tables.groups) <= tables.pool.free:
            self._blocks.append(tables.extend(reserve.rows, entries))
        else:
            self._row_by_row()

    def changes(self) -> Int32:
        """Table entries that changed, without those of rows preempted since: [N, 4]."""
        if not self._blocks:
            return EMPTY_BLOCKS
        blocks = np.concatenate(self._blocks)
        if self.victims:
            return np.asarray(blocks[np.isin(blocks[:, 0], self.victims, invert=True)], dtype=np.int32)
        return blocks

    def _missing(self, rows: Int32, tokens: Int32) -> Int32:
        missing: Int32 = -(-tokens // self.tables.block_size) - self.tables.held[rows]
        return np.maximum(missing, np.int32(0))

    def _drop_behind_windows(self) -> None:
        for row, computed in zip(self.reserve.rows.tolist(), self.reserve.computed.tolist(), strict=True):
            changes = self.tables.drop_behind_window(row, computed, self.reserve.number)
            if changes:
                self._blocks.append(np.array(changes, dtype=np.int32))
        self.tables.collect(returned=self.reserve.returned)

    def _row_by_row(self) -> None:
        """Blocks are short: serve in order, preempt from the victims' end, wait for what steps in flight hold."""
        tables, reserve = self.tables, self.reserve
        order = reserve.victims.tolist()
        position = {row: i for i, row in enumerate(reserve.rows.tolist())}
        for i in range(len(reserve.rows)):
            one = reserve.rows[i : i + 1]
            entries = self._missing(one, reserve.computed[i : i + 1] + self.counts[i : i + 1])
            needed = int(entries[0]) * len(tables.groups)
            while self.counts[i] and needed > tables.pool.free:
                if needed <= tables.pool.free + tables.leaving:
                    self.counts[i] = 0
                else:
                    self._preempt(order.pop(0), position)
            if self.counts[i]:
                self._blocks.append(tables.extend(one, entries))

    def _preempt(self, victim: int, position: dict[int, int]) -> None:
        """Take a row's blocks and, when it was served before in this pass, its tokens."""
        self.counts[position[victim]] = 0
        self.victims.append(victim)
        self.tables.release(victim, returned=self.reserve.returned)


def _let_in(
    tables: BlockTables,
    rules: Rules,
    reserve: Reserve,
    budget: int,
    admitted: list[Admission],
    copies: list[tuple[int, int]],
) -> None:
    """The waiting pass."""
    free_rows = iter(reserve.free_rows)
    for candidate in reserve.candidates:
        row = next(free_rows, None)
        if row is None or budget <= 0:
            return
        watermark = rules.watermark_blocks if len(reserve.rows) or admitted else 0
        admission = _admit(tables, rules, reserve.number, candidate, row, budget, watermark, copies)
        if admission is None:
            return
        admitted.append(admission)
        budget -= admission.count


def _admit(
    tables: BlockTables,
    rules: Rules,
    number: int,
    candidate: Candidate,
    row: int,
    budget: int,
    watermark: int,
    copies: list[tuple[int, int]],
) -> Admission | None:
    """Give one candidate a row, its cached beginning and blocks for its first tokens; None when it must wait.

    It is let in only when blocks for everything it knows are there, not just for its first chunk: half-admitted
    prompts would preempt one another.
    """
    pool = tables.pool
    known = candidate.known
    if candidate.fork_row >= 0 and not tables.can_fork(candidate.fork_row, known - 1):
        candidate = replace(candidate, fork_row=-1)
    computed, blocks = _beginning(tables, candidate)
    count = min(known - computed, budget)
    if not rules.chunked_prefill and count < known - computed:
        return None
    if rules.long_prefill_tokens:
        count = min(count, rules.long_prefill_tokens)
    # A fork's last block is shared and about to be written, unless its first token begins a block: one copy a group.
    copied = candidate.fork_row >= 0 and computed % tables.block_size > 0
    fresh = (tables.entries(known) - len(blocks[0]) + copied) * len(tables.groups)
    revived = sum(1 for ids in blocks for block in ids if block and pool.is_free(block))
    if fresh + revived + watermark > pool.free:
        return None
    tables.open(row, root=candidate.root, names=candidate.names, feeds=candidate.feed_cache)
    tables.adopt(row, blocks)
    tables.last_step[row] = number
    if copied:
        copies += tables.copy_last(row, number)
    missing = max(0, tables.entries(computed + count) - len(blocks[0]))
    tables.extend(np.array([row], dtype=np.int32), np.array([missing], dtype=np.int32))
    held = int(tables.held[row])
    return Admission(
        request=candidate.request,
        row=row,
        computed=computed,
        count=count,
        tables=tuple(tables.tables[group, row, :held].tobytes() for group in range(len(tables.groups))),
    )


def _beginning(tables: BlockTables, candidate: Candidate) -> tuple[int, list[list[int]]]:
    """Tokens a candidate need not compute, and the blocks that hold them; one token is always left to compute."""
    if candidate.fork_row >= 0:
        return candidate.known - 1, tables.beginning(candidate.fork_row, candidate.known - 1)
    most = (candidate.known - 1) // tables.block_size
    if not candidate.read_cache or most == 0:
        return 0, [[] for _ in tables.groups]
    matched = tables.index.match(candidate.names, most)
    return len(matched[0]) * tables.block_size, [list(ids) for ids in matched]
