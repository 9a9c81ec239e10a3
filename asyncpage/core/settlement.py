"""Settles one step over memory: who gets tokens and blocks, at whose expense, and who is let in.

One function of the memory and a `Reserve`; the KV manager calls it, the scheduler reads the `Granted`.
Running pass: every running row in order asks for its tokens, clipped by the budget; when blocks run out drafts are
given up, then the next victim is preempted. Waiting pass, only in a step that preempted nobody: candidates in order,
until budget, rows or blocks above the watermark run out; one whose next block a running row promises is parked, and
the first that does not fit ends the pass, so nobody is overtaken for want of memory.

INVARIANT: a step never grants more tokens than the budget, nor a token without a block to write it to.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from asyncpage.core.memory import Memory
from asyncpage.core.prefix_index import Match
from asyncpage.core.tier import NO_RUN, Run, Tier
from asyncpage.messages import (
    EMPTY_BLOCKS,
    EMPTY_TRIPLES,
    Admission,
    Candidate,
    Granted,
    Int32,
    RequestId,
    Reserve,
)

# A row may get this many blocks ahead of its need. What a settlement costs is spread over the steps that they last: at
# 256 rows 32 us a step with one, 25 with four.
_MOST_AHEAD = 4
_PLENTY = 8  # free blocks for each that is given ahead


def settle(memory: Memory, reserve: Reserve) -> tuple[Granted, bool]:
    """Apply what has ended and filled, then both passes. Updates `memory`; a pure function of its arguments.

    Returns the answer, and whether `memory.publish` is left to be called once that is sent: in steady decode nobody
    waits for names.
    """
    tables, sharing = memory.tables, memory.sharing
    tables.step = reserve.number
    tables.collect(returned=reserve.returned)
    tier = tables.tier
    if tier is not None:
        tier.returned(reserve.returned)
    is_steady = not (reserve.candidates or reserve.released or len(sharing))
    if not is_steady:
        memory.publish(reserve)
        for one in reserve.released:
            tables.release(one.row, returned=reserve.returned, tail=one.tail)
            memory.left(one.row)

    running = _Running(memory, reserve)
    if not running.settle() and not (running.give_up_drafts() and running.settle()):
        if is_steady:
            memory.publish(reserve)  # before victims give blocks back
            is_steady = False
        running.settle_row_by_row()
        for victim in running.victims:
            memory.left(victim)
    waiting = _Waiting(memory, reserve, reserve.budget_tokens - running.tokens)
    if reserve.candidates and not running.victims:
        waiting.settle(has_company=bool(len(reserve.order)))

    rows, counts = memory.batch.of(running.counts)
    if waiting.admitted:
        rows = np.concatenate([rows, np.array([a.row for a in waiting.admitted], dtype=np.int32)])
        counts = np.concatenate([counts, np.array([a.count for a in waiting.admitted], dtype=np.int32)])
    granted = Granted(
        number=reserve.number,
        rows=rows,
        counts=counts,
        blocks=running.changes(),
        copies=np.array(waiting.copies, dtype=np.int32) if waiting.copies else EMPTY_TRIPLES,
        victims=tuple(running.victims),
        admitted=tuple(waiting.admitted),
        free_blocks=tables.pool.free,
        parked=tuple(waiting.parked),
        woken=sharing.woken(),
        steps=running.steps,
    )
    if tier is not None:
        granted = _with_moves(granted, tier, waiting.loads)
    return granted, is_steady


def _with_moves(granted: Granted, tier: Tier, loads: list[tuple[int, int]]) -> Granted:
    """With what goes between the device and the host in this step, and who has waited for files."""
    saves = tier.saves(granted.number)
    woken = tier.files.woken()
    if not (saves or loads or woken):
        return granted
    return replace(
        granted,
        woken=granted.woken + woken,
        saves=np.array(saves, dtype=np.int32).reshape(-1, 2),
        loads=np.array(loads, dtype=np.int32).reshape(-1, 2),
    )


class _Running:
    """The running pass over columns; only a shortage goes row by row. `counts` [rows]: tokens granted.

    `steps`: how many steps like this one have their blocks.
    """

    def __init__(self, memory: Memory, reserve: Reserve) -> None:
        self.tables = memory.tables
        self.reserve = reserve
        self.victims: list[int] = []
        self._sharing = memory.sharing
        self._blocks: list[Int32] = []
        wants = reserve.wants
        self.tokens = reserve.tokens
        self.steps = 1
        if self.tokens <= reserve.budget_tokens:
            self.counts: Int32 = wants
            self._is_decode = self.tokens == len(memory.batch.of(wants)[0])
        else:
            asked = wants[reserve.order]
            before = np.cumsum(asked) - asked
            self.counts = np.zeros_like(wants)
            self.counts[reserve.order] = np.clip(reserve.budget_tokens - before, 0, asked)
            self.tokens = reserve.budget_tokens
            self._is_decode = False

    def give_up_drafts(self) -> bool:
        """Ask for none of them; False when none were asked for."""
        drafts = self.reserve.drafts
        if not len(drafts):
            return False
        self.counts = self.counts - drafts
        self.tokens -= int(drafts.sum())
        return True

    def settle(self) -> bool:
        """Grant everybody the blocks they miss; False when there are not enough, and nothing was done."""
        tables, reserve = self.tables, self.reserve
        if not self.tokens:
            return True
        if tables.has_window:
            self._drop_behind_windows()
        groups, free = len(tables.groups), tables.pool.free
        self.steps = self._steps_ahead()
        ends = reserve.computed + self.steps * self.counts
        rows = (ends > tables.room).nonzero()[0].astype(np.int32)
        if not len(rows):
            return True
        if self._is_decode and self.steps <= tables.block_size:
            if len(rows) * groups > free:
                return False
            self._blocks.append(tables.extend_by_one(rows))
            return True
        entries = -(-ends[rows] // tables.block_size) - tables.held[rows]
        if int(entries.sum()) * groups > free:
            return False
        self._blocks.append(tables.extend(rows, entries))
        return True

    def _steps_ahead(self) -> int:
        """For how many steps blocks are given: 1, and more to rows that only decode while there are plenty."""
        reserve, tables = self.reserve, self.tables
        if reserve.equal_steps < 2 or not self._is_decode or len(self._sharing):
            return 1
        if tables.tier is not None and tables.tier.can_save:
            return 1
        blocks = min(_MOST_AHEAD, tables.pool.free // (_PLENTY * len(reserve.order) * len(tables.groups)))
        return max(1, min(reserve.equal_steps, blocks * tables.block_size))

    def settle_row_by_row(self) -> None:
        """Blocks are short: serve in order, preempt from the victims' end, wait for what steps in flight hold."""
        tables, reserve = self.tables, self.reserve
        if tables.has_window:  # more may be published by now
            self._drop_behind_windows()
        victims = iter(reserve.victims.tolist())
        self.counts = self.counts.copy()
        for row in reserve.order.tolist():
            while self.counts[row]:
                entries = tables.entries(int(reserve.computed[row] + self.counts[row])) - int(tables.held[row])
                needed = entries * len(tables.groups)
                if needed <= tables.pool.free:
                    one = np.array([row], dtype=np.int32)
                    if entries > 0:
                        self._blocks.append(tables.extend(one, np.array([entries], dtype=np.int32)))
                    break
                if needed <= tables.pool.free + tables.leaving:
                    self.counts[row] = 0
                else:
                    self._preempt(next(victims))
        self.tokens = int(self.counts.sum())

    def changes(self) -> Int32:
        """Table entries that changed, without those of rows preempted since: [N, 4]."""
        if not self._blocks:
            return EMPTY_BLOCKS
        if len(self._blocks) == 1 and not self.victims:
            return self._blocks[0]
        blocks = np.concatenate(self._blocks)
        if self.victims:
            return np.asarray(blocks[np.isin(blocks[:, 0], self.victims, invert=True)], dtype=np.int32)
        return blocks

    def _drop_behind_windows(self) -> None:
        reserve = self.reserve
        for row in reserve.order.tolist():
            changes = self.tables.drop_behind_window(row, max(0, int(reserve.computed[row]) - reserve.most_behind))
            if changes:
                self._blocks.append(np.array(changes, dtype=np.int32))
        self.tables.collect(returned=self.reserve.returned)

    def _preempt(self, victim: int) -> None:
        """Take a row's blocks and, when it was served before in this pass, its tokens."""
        self.counts[victim] = 0
        self.victims.append(victim)
        self.tables.release(victim, returned=self.reserve.returned)


class _Waiting:
    """The waiting pass."""

    def __init__(self, memory: Memory, reserve: Reserve, budget: int) -> None:
        self._tables = memory.tables
        self._rules = memory.rules
        self._sharing = memory.sharing
        self._owed = memory.owed
        self._explanations = memory.explanations
        self._tier = memory.tables.tier
        self._reserve = reserve
        self._budget = budget
        self.admitted: list[Admission] = []
        self.parked: list[RequestId] = []
        self.copies: list[tuple[int, int, int]] = []
        self.loads: list[tuple[int, int]] = []

    def settle(self, *, has_company: bool) -> None:
        """Let in whoever fits. `has_company`: rows are running, so the watermark counts from the first on."""
        rows = list(reversed(self._reserve.free_rows))
        for candidate in self._reserve.candidates:
            if not rows or self._budget <= 0:
                return
            match = self._match(candidate)
            run: Run | None = NO_RUN
            if self._tier is not None and match is not None and candidate.read_cache:
                run = self._outside(self._tier, candidate, match)
                if run:  # whole blocks, where a donor has a part of one
                    match = replace(match, donors=(), tail=0)
            if run is None or (not run and self._parks(candidate, match)):
                self.parked.append(candidate.request)
                continue
            watermark = self._rules.watermark_blocks if has_company or self.admitted else 0
            is_in = self._admit(candidate, match, rows[-1], watermark, run)
            if not is_in and match is not None and match.tail:
                # A donor takes a block beside the request's own: in a full pool it would keep out whoever fits alone.
                is_in = self._admit(candidate, replace(match, donors=(), tail=0), rows[-1], watermark)
            if not is_in:
                return
            rows.pop()

    def _match(self, candidate: Candidate) -> Match | None:
        """What the cache holds of it; None for a fork, which has its sibling. One token is always left to compute."""
        if candidate.fork_row >= 0 and self._tables.can_fork(candidate.fork_row, candidate.known - 1):
            return None
        index = self._tables.index
        if not candidate.read_cache:
            return Match(((),) * len(self._tables.groups), index.begin(candidate.prefix.root))
        return index.match(candidate.prefix, candidate.known - 1)

    def _outside(self, tier: Tier, candidate: Candidate, match: Match) -> Run | None:
        """What follows the match in host slots; None while it is being fetched from files."""
        first, prefix = len(match.blocks[0]), candidate.prefix
        proof = self._tables.proof_behind(prefix.root, [ids[-1] for ids in match.blocks] if first else ())
        if proof is None:
            return NO_RUN
        most = (candidate.known - 1) // self._tables.block_size
        return tier.reach(candidate.request, prefix, first, proof, most)

    def _parks(self, candidate: Candidate, match: Match | None) -> bool:
        if match is None or not candidate.read_cache or not self._rules.shares_in_flight:
            return False
        names = candidate.prefix.names[: (candidate.known - 1) // self._tables.block_size]
        return self._sharing.park(candidate.request, names, len(match.blocks[0]))

    def _admit(self, candidate: Candidate, match: Match | None, row: int, watermark: int, run: Run = NO_RUN) -> bool:
        """Give one candidate a row, its cached beginning and blocks for its first tokens; False when it must wait."""
        tables, rules, pool = self._tables, self._rules, self._tables.pool
        size, groups = tables.block_size, len(tables.groups)
        if match is None:
            computed = candidate.known - 1
            blocks: list[list[int]] | tuple[tuple[int, ...], ...] = tables.beginning(candidate.fork_row, computed)
        else:
            blocks = match.blocks
            computed = (len(blocks[0]) + len(run)) * size + match.tail
        count = min(candidate.known - computed, self._budget)
        if not rules.chunked_prefill and count < candidate.known - computed:
            return False
        if rules.long_prefill_tokens:
            count = min(count, rules.long_prefill_tokens)
        # A fork's last block is shared and about to be written, unless its first token begins a block.
        copied = match is None and computed % size > 0
        gate = candidate.known if rules.whole_prompt else computed + count
        fresh = (tables.entries(gate) - len(blocks[0]) + copied) * groups
        donors = match.donors if match is not None else ()
        shared = len(blocks[0]) * groups + len(donors)
        spare = pool.free - watermark
        if rules.whole_prompt:
            spare -= self._owed.entries(tables.held) * groups
        if fresh + shared > spare:  # those that somebody holds are not to be counted
            revived = sum(pool.count_free(ids) for ids in (*blocks, donors))
            if fresh + revived > spare:
                return False
        tables.cause = candidate.request
        if match is not None and candidate.read_cache:
            self._explanations.admitted(
                self._reserve.number,
                candidate.request,
                candidate.label,
                candidate.prefix,
                match,
                tables.index,
                fetched=len(run),
            )
        self._open(candidate, match, row, computed)
        held = tables.entries(computed + count)
        columns = tables.adopt(row, blocks, held - len(blocks[0]), donors=donors)
        self._owed.admitted(row, tables.entries(gate), held)
        if copied:  # then no fresh one was taken: a fork computes one token
            self.copies += tables.copy_last(row, computed)
        if match is not None and donors:
            begun = len(blocks[0])
            self.copies += [(donor, ids[begun], match.tail) for donor, ids in zip(donors, columns, strict=True)]
            tables.leave(donors)
        if match is not None and run:
            self.loads += tables.load(row, match, run)
        if candidate.feed_cache:
            self._sharing.promise(row, candidate.prefix.names[computed // size : candidate.known // size])
        self.admitted.append(
            Admission(
                request=candidate.request,
                row=row,
                computed=computed,
                count=count,
                tables=tuple(tables.tables[group, row, :held].tobytes() for group in range(groups)),
            )
        )
        self._budget -= count
        return True

    def _open(self, candidate: Candidate, match: Match | None, row: int, computed: int) -> None:
        published = computed // self._tables.block_size
        if match is None:
            self._tables.open_fork(
                row,
                candidate.request,
                candidate.prefix,
                published=published,
                sibling=candidate.fork_row,
                feeds=candidate.feed_cache,
            )
        else:
            branch = match.branch if candidate.feed_cache else None
            self._tables.open(row, candidate.request, candidate.prefix, published=published, branch=branch)
