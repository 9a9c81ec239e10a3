"""The running batch in columns: which rows live, how far each has got, and what every step in flight will bring.

The scheduler owns one. Counts advance when a step is scheduled (`launch`) and are settled when it returns
(`settle`): a row has known and computed tokens, and every step makes computed catch up with known. A row that will
have caught up samples, so one token more counts as known from then on, before anybody has seen it; that is what
lets step N+1 be planned while N runs. Each step in flight has an immutable record.

INVARIANT: a result reaches a sequence only if the row still lives the life that the step was planned for.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncpage.core.policy import Policy
from asyncpage.core.sequence import Sequence
from asyncpage.errors import ProtocolError
from asyncpage.messages import Admission, FilledBlocks, Int32, Logprobs, PromptLogprobs, RequestId, StepDone


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord:
    """A step in flight. `ends`: computed tokens of each row after it; `lives`: which life of the row it serves."""

    number: int
    epoch: int
    rows: Int32
    lives: NDArray[np.int64]
    ends: Int32


@dataclass(frozen=True, slots=True)
class Sampled:
    """Tokens that a sequence got from one step. `at`: their place in the step's token columns."""

    sequence: Sequence
    at: int
    count: int


@dataclass(frozen=True, slots=True)
class Settled:
    """What a returned step means for the sequences that still live in its rows.

    `progress`: computed tokens of each; `filled`: blocks that hold computed, accepted tokens only from now on.
    """

    sampled: list[Sampled]
    filled: list[FilledBlocks]
    progress: list[tuple[Sequence, int]]
    failed: list[tuple[Sequence, str]]
    prompt_logprobs: list[tuple[RequestId, PromptLogprobs]]


class Running:
    """Rows, their columns and the records of steps in flight.

    `known`, `computed`, `limit` [rows] are tokens, steps in flight included.
    """

    def __init__(self, *, rows: int, block_size: int, policy: Policy) -> None:
        self.block_size = block_size
        self.known: Int32 = np.zeros(rows, dtype=np.int32)
        self.computed: Int32 = np.zeros(rows, dtype=np.int32)
        self.limit: Int32 = np.zeros(rows, dtype=np.int32)
        self.in_flight: deque[StepRecord] = deque()
        self._policy = policy
        self._filled: Int32 = np.zeros(rows, dtype=np.int32)  # blocks reported as full in this life
        self._named: Int32 = np.zeros(rows, dtype=np.int32)  # blocks whose names the KV manager had from the start
        self._lives: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self._occupants: list[Sequence | None] = [None] * rows
        self._free = list(range(rows))
        self._order: Int32 | None = None

    def __len__(self) -> int:
        return len(self._occupants) - len(self._free)

    def free_rows(self, most: int) -> tuple[int, ...]:
        """The lowest free rows, at most `most`."""
        return tuple(heapq.nsmallest(most, self._free))

    def occupant(self, row: int) -> Sequence:
        """The sequence that lives in a row."""
        sequence = self._occupants[row]
        if sequence is None:
            raise ProtocolError(f"row {row} is empty")
        return sequence

    def occupants(self) -> list[Sequence]:
        """Every running sequence, in policy order."""
        return [self.occupant(row) for row in self.order().tolist()]

    def order(self) -> Int32:
        """The rows that live, in policy order."""
        if self._order is None:
            living = [(self._policy(s), s.row) for s in self._occupants if s is not None]
            self._order = np.array([row for _, row in sorted(living)], dtype=np.int32)
        return self._order

    def wants(self, most: int = 0) -> tuple[Int32, Int32]:
        """Rows with tokens to compute, in policy order, and how many each: known - computed.

        The last token a row may have is never computed: nothing comes after it. `most` clips what one row may ask
        for, 0 does not.
        """
        rows = self.order()
        wants = np.minimum(self.known[rows], self.limit[rows] - 1) - self.computed[rows]
        if most:
            wants = np.minimum(wants, np.int32(most))
        asking = wants > 0
        return rows[asking], wants[asking]

    def open(self, sequence: Sequence, admission: Admission) -> None:
        """A waiting sequence moves into the row it was given."""
        row = admission.row
        self._free.remove(row)
        heapq.heapify(self._free)
        self._occupants[row] = sequence
        self._order = None
        self._lives[row] += 1
        self.known[row] = len(sequence.tokens)
        self.computed[row] = admission.computed
        self.limit[row] = sequence.limit
        self._filled[row] = admission.computed // self.block_size
        self._named[row] = len(sequence.names)
        sequence.row = row

    def close(self, sequence: Sequence) -> int:
        """The sequence leaves its row, finished or preempted; results on their way to it will be dropped."""
        row = sequence.row
        self._occupants[row] = None
        self._order = None
        self._lives[row] += 1
        heapq.heappush(self._free, row)
        sequence.row = -1
        return row

    def launch(self, number: int, epoch: int, rows: Int32, counts: Int32) -> None:
        """A step leaves: advance what it will have computed, and what it will have sampled."""
        self.computed[rows] += counts
        ends = self.computed[rows]
        self.known[rows[ends == self.known[rows]]] += 1
        self.in_flight.append(StepRecord(number, epoch, rows, self._lives[rows], ends))

    def settle(self, done: StepDone) -> Settled | None:
        """The oldest step in flight is back: hand its tokens to the sequences that still live in its rows.

        None when the result belongs to a past epoch and is dropped.
        Errors: `ProtocolError` when the executor answers a step that is not the one awaited.
        """
        if not self.in_flight or done.epoch != self.in_flight[0].epoch:
            return None
        record = self.in_flight.popleft()
        if done.number != record.number:
            raise ProtocolError(f"the executor answered step {done.number}, step {record.number} was awaited")
        alive = self._lives[record.rows] == record.lives
        rows, ends = record.rows[alive], record.ends[alive]
        living = {row: self.occupant(row) for row in rows.tolist()}
        sampled = []
        at = 0
        for row, count in zip(done.rows.tolist(), done.counts.tolist(), strict=True):
            if row in living:
                sequence = living[row]
                sequence.tokens.extend(done.tokens[at : at + count].tolist())
                self.known[row] += count - 1
                sampled.append(Sampled(sequence, at, count))
            at += count
        prompts = []
        for found in done.prompt_logprobs:
            if found.row in living:
                sequence = living[found.row]
                sequence.reported = max(sequence.reported, found.start + len(found.tokens))
                prompts.append((sequence.request, found))
        return Settled(
            sampled=sampled,
            filled=self._newly_filled(rows, ends),
            progress=list(zip(living.values(), ends.tolist(), strict=True)),
            failed=[(living[row], reason) for row, reason in done.failed if row in living],
            prompt_logprobs=prompts,
        )

    def unreturned(self, number: int | None = None) -> dict[RequestId, int]:
        """Living requests of the steps in flight, with the computed tokens the first of these steps was to reach.

        With `number`, of that step alone.
        """
        suspects: dict[RequestId, int] = {}
        for record in self.in_flight:
            if number is not None and record.number != number:
                continue
            for row, life, end in zip(record.rows.tolist(), record.lives.tolist(), record.ends.tolist(), strict=True):
                if self._lives[row] == life:
                    suspects.setdefault(self.occupant(row).request, end)
        return suspects

    def _newly_filled(self, rows: Int32, ends: Int32) -> list[FilledBlocks]:
        full = ends // self.block_size
        more = full > self._filled[rows]
        filled = []
        for row, last in zip(rows[more].tolist(), full[more].tolist(), strict=True):
            sequence = self.occupant(row)
            if sequence.options.use_cache:
                first = int(self._filled[row])
                unnamed = max(first, int(self._named[row]))
                tokens = sequence.tokens[unnamed * self.block_size : last * self.block_size].tobytes()
                filled.append(FilledBlocks(row, first, last, tokens))
            self._filled[row] = last
        return filled


def columns_of(sampled: Items[Sampled], done: StepDone) -> tuple[Int32, Int32, Logprobs | None]:
    """Counts, tokens and logprobs of a step without those of rows that have ended since."""
    if len(sampled) == len(done.rows):
        return done.counts, done.tokens, done.logprobs
    counts = np.array([piece.count for piece in sampled], dtype=np.int32)
    at = np.array([i for piece in sampled for i in range(piece.at, piece.at + piece.count)], dtype=np.intp)
    own = done.logprobs
    if own is not None:
        own = Logprobs(own.token_logprobs[at], own.ranks[at], own.top_ids[at], own.top_logprobs[at])
    return counts, done.tokens[at], own
