"""The running batch in columns: which rows live, how far each has got, and what every step in flight will bring.

The scheduler owns one. Counts advance when a step is scheduled (`launch`) and are settled when it returns
(`settle`): a row has known and computed tokens, and every step makes computed catch up with known. A row that will
have caught up samples, so one token more counts as known from then on, before anybody has seen it; that is what
lets step N+1 be planned while N runs. Drafts count in the same way as if all of them stood. Each step in flight has an
immutable record. A row that turns out to be behind what was planned (`acceptance`) is so in the columns and in the
records, which others replace.

Columns run over all rows, the empty ones are 0 everywhere and so want nothing: at 256 rows an operation on a whole
column takes half a microsecond, one through row numbers three. Requests are objects only when something happens to
them: they come, end, or are preempted. While nothing happens at all, steps that equal one another are counted in a
lane, and written into the columns when somebody asks for one.

INVARIANT: a result reaches a sequence only if the row still lives the life that the step was planned for.
"""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np
from numpy.typing import NDArray

from asyncpage.core.acceptance import behind, check_counts, cut, of_living
from asyncpage.core.end_tokens import EndTokens, is_any
from asyncpage.core.policy import Policy, VictimPolicy
from asyncpage.core.returned import Int64, Lane, Over, Returned, StepRecord, take_positions
from asyncpage.core.row_order import RowOrder
from asyncpage.core.row_requests import RowRequests
from asyncpage.core.row_tokens import RowTokens
from asyncpage.core.sequence import Sequence
from asyncpage.errors import ProtocolError
from asyncpage.messages import Admission, Int32, PromptLogprobs, RequestId, StepDone


class Running:
    """Rows, their columns and the records of steps in flight.

    `computed` [rows] are tokens, steps in flight included.
    """

    def __init__(
        self, *, rows: int, block_size: int, max_tokens: int, vocab_size: int, policy: Policy, victims: VictimPolicy
    ) -> None:
        self.block_size = block_size
        self.in_flight: deque[StepRecord] = deque()
        self.no_wants: Int32 = np.zeros(rows, dtype=np.int32)
        self.no_wants.flags.writeable = False
        self._policy = policy
        self._victims = victims
        self._lane: Lane | None = None
        self._tokens = RowTokens(rows, max_tokens, block_size)
        self._known: Int32 = np.zeros(rows, dtype=np.int32)
        self._computed: Int32 = np.zeros(rows, dtype=np.int32)
        self._accepted: Int32 = np.zeros(rows, dtype=np.int32)  # tokens that were seen
        self._limit: Int32 = np.zeros(rows, dtype=np.int32)
        self._last: Int32 = np.zeros(rows, dtype=np.int32)  # most tokens to compute
        self._settled: Int32 = np.zeros(rows, dtype=np.int32)  # computed by steps that are back
        self._priority: Int32 = np.zeros(rows, dtype=np.int32)
        self._admitted: Int64 = np.zeros(rows, dtype=np.int64)  # the how-manieth admission it was
        self._lives: Int64 = np.zeros(rows, dtype=np.int64)
        self._requests = RowRequests(rows)
        self._began: list[int] = [0] * rows  # tokens that the sequence itself holds
        self._end_tokens = EndTokens(vocab_size)
        self._occupants: list[Sequence | None] = [None] * rows
        self._free = list(range(rows))
        self._silent: set[int] = set()  # rows that are there for what their prompt tells alone
        self._order = RowOrder(rows)
        self._membership = self._admissions = 0
        self._lives_now: Int64 | None = None  # a copy of the lives that records share
        self._wants: tuple[bytes, Int32, int] = (b"", self.no_wants, 0)  # the last wants, and their sum
        # The last counts as a list and as a column, and which of its entries are not 0.
        self._advance: tuple[Int32 | None, Int32, NDArray[np.bool_]] = (None, self.no_wants, self.no_wants > 0)

    def __len__(self) -> int:
        return len(self._occupants) - len(self._free)

    def free_rows(self, most: int) -> tuple[int, ...]:
        """The lowest free rows, at most `most`."""
        return tuple(heapq.nsmallest(most, self._free)) if most else ()

    def occupant(self, row: int) -> Sequence:
        """The sequence that lives in a row."""
        sequence = self._occupants[row]
        if sequence is None:
            raise ProtocolError(f"row {row} is empty")
        return sequence

    def occupants(self) -> list[Sequence]:
        """Every running sequence, in policy order."""
        return [self.occupant(row) for row in self.order().tolist()]

    # --- planning a step ----------------------------------------------------------------------------------------------

    def order(self) -> Int32:
        """The rows that live, in policy order."""
        return self._order.column()

    def victims(self) -> Int32:
        """The rows that live, first to be preempted first."""
        return self._victims(self.order(), priority=self._priority, admitted=self._admitted, computed=self.computed)

    @property
    def computed(self) -> Int32:
        self._write_down()
        return self._computed

    def wants(self, most: int = 0) -> tuple[Int32, int]:
        """Tokens each row has to compute [rows]: known - computed, and their sum.

        `most` clips what one row may ask for, 0 does not. The same array as the last time while nothing differs.
        """
        self._write_down()
        wants = np.minimum(self._known, self._last)
        wants -= self._computed
        if most:
            wants = np.minimum(wants, np.int32(most))
        key = wants.tobytes()
        if key != self._wants[0]:
            wants.flags.writeable = False
            self._wants = (key, wants, int(wants.sum()))
        return self._wants[1:]

    def decoding(self, wants: Int32) -> NDArray[np.bool_]:
        """The rows that want one token and will have caught up with it [rows]."""
        return np.asarray((wants == 1) & (self.computed == self._known - 1), dtype=np.bool_)

    def room_for_drafts(self, wants: Int32) -> Int32:
        """Drafts that each row could try beside the one token that it wants [rows], up to the last it may compute."""
        return np.where(self.decoding(wants), self._last - self._known, 0).astype(np.int32)

    def equal_steps(self, wants: Int32, tokens: int) -> int:
        """How many steps, the next included, could be alike: a token each for those that want one now, none the last.

        1 when the next is not of that kind.
        """
        if self._silent or not tokens:
            return 1
        rows = wants.nonzero()[0]
        if len(rows) != tokens or int((self._known - self._computed).take(rows).max()) > 1:
            return 1
        return max(1, int((self._last - self._computed).take(rows).min()) - 1)

    def launch(
        self, number: int, epoch: int, rows: Int32, counts: Int32, *, is_first_of_many: bool = False,
        has_drafts: bool = False,
    ) -> None:  # fmt: skip
        """A step leaves: advance what it will have computed, and what it will have sampled.

        `is_first_of_many`: it is one of `equal_steps`, and others may follow by `launch_again`. `has_drafts`: what a
        row computes beyond what it knows are drafts to try.
        """
        self._write_down()
        if counts is not self._advance[0]:
            column = np.zeros_like(self._known)
            column[rows] = counts
            self._advance = (counts, column, column > 0)
        _, column, runs = self._advance
        self._computed = self._computed + column  # records keep the old one
        drafts: Int32 | None = None
        if has_drafts:
            drafts = np.maximum(self._computed - self._known, 0)
            drafts *= runs
            self._known += drafts
            drafts = drafts if drafts.any() else None
        caught_up = self._computed == self._known
        caught_up &= runs
        self._known += caught_up
        self._lane = Lane(rows, column, self._who(rows), rows) if is_first_of_many else None
        self._record(number, epoch, rows, column, 0, drafts)

    @property
    def may_go_on(self) -> bool:
        """Whether a step like the last one may follow it: nobody has come or gone or got several tokens since."""
        return self._lane is not None

    def launch_again(self, number: int, epoch: int) -> tuple[Int32, Int32]:
        """A step like the one before leaves. Returns its rows and counts."""
        lane, counts = self._lane, self._advance[0]
        assert lane is not None
        assert counts is not None
        lane.launched += 1
        self._record(number, epoch, lane.rows, lane.column, lane.launched)
        return lane.rows, counts

    def _record(
        self, number: int, epoch: int, rows: Int32, column: Int32, steps: int, drafts: Int32 | None = None
    ) -> None:
        if self._lives_now is None:
            self._lives_now = self._lives.copy()
        self.in_flight.append(
            StepRecord(number, epoch, rows, self._computed, column, steps, self._lives_now, self._membership, drafts)
        )

    def _write_down(self) -> None:
        """Bring the columns up to what the lane has counted."""
        lane = self._lane
        if lane is None:
            return
        if lane.launched:
            more = lane.launched * lane.column
            lane.launched = 0
            self._computed = self._computed + more
            self._known += more
        if lane.newest is not None:
            self._tokens.append_steps(lane.rows, lane.back)
            self._accepted += len(lane.back) * lane.column
            self._settled = lane.newest.ends
            lane.back.clear()
            lane.newest = None

    # --- rows come and go ---------------------------------------------------------------------------------------------

    def open(self, sequence: Sequence, admission: Admission) -> None:
        """A waiting sequence moves into the row it was given."""
        row, known = admission.row, len(sequence.tokens)
        if self._free[0] == row:
            heapq.heappop(self._free)
        else:
            self._free.remove(row)
            heapq.heapify(self._free)
        self._occupants[row] = sequence
        self._requests.put(row, sequence.request)
        self._changed(row)
        self._order.add(row, self._policy.key(sequence))
        self._admissions += 1
        self._tokens.open(row, sequence.tokens, computed=admission.computed, is_named=sequence.options.use_cache)
        self._began[row] = known
        self._known[row] = self._accepted[row] = known
        self._computed[row] = self._settled[row] = admission.computed
        self._limit[row] = sequence.limit
        self._last[row] = sequence.most_computed
        self._priority[row] = sequence.options.priority
        self._admitted[row] = self._admissions
        self._end_tokens.add(sequence.end_token_ids)
        if sequence.is_complete:
            self._silent.add(row)
        sequence.row = row
        sequence.candidate = None

    def close(self, sequence: Sequence) -> int:
        """The sequence leaves its row, finished or preempted; results on their way to it will be dropped."""
        row = sequence.row
        self._changed(row)
        sequence.computed = int(self._settled[row])
        sequence.tokens.frombytes(self._tokens.read(row, self._began[row], int(self._accepted[row])))
        self._tokens.find_full_in(row, sequence.computed)
        self._tokens.close(row)
        self._occupants[row] = None
        self._order.remove(row)
        for column in (self._known, self._accepted, self._computed, self._settled, self._limit, self._last):
            column[row] = 0
        self._end_tokens.remove(sequence.end_token_ids)
        self._silent.discard(row)
        heapq.heappush(self._free, row)
        sequence.row = -1
        return row

    def tail(self, sequence: Sequence, most_tokens: int) -> bytes:
        """What a running sequence has computed and got behind its last full block, within its first `most_tokens`."""
        self._write_down()
        row = sequence.row
        settled = int(self._settled[row])
        self._tokens.find_full_in(row, settled)
        return self._tokens.behind_full(row, min(settled, int(self._accepted[row]), most_tokens))

    def take_full(self) -> tuple[Int32, Int32]:
        """Blocks that are full of computed, accepted tokens since the last time, as `Reserve` has them."""
        self._write_down()
        self._tokens.find_full(self._settled)
        return self._tokens.take_full()

    def rewind(self) -> None:
        """No step is in flight any more, and nobody will be told which blocks were full."""
        self.in_flight.clear()
        self._tokens.drop_full()

    def _changed(self, row: int) -> None:
        self._write_down()
        self._lane = None
        self._membership += 1
        self._lives[row] += 1
        self._lives_now = None

    # --- a step is back -----------------------------------------------------------------------------------------------

    def settle(self, done: StepDone) -> Returned | None:
        """The oldest step in flight is back: hand its tokens to the sequences that still live in its rows.

        None when the result belongs to a past epoch and is dropped.
        Errors: `ProtocolError` when the executor answers a step that is not the one awaited.
        """
        if not self.in_flight or done.epoch != self.in_flight[0].epoch:
            return None
        record = self.in_flight.popleft()
        if done.number != record.number:
            raise ProtocolError(f"the executor answered step {done.number}, step {record.number} was awaited")
        rows, counts, tokens, logprobs = done.rows, done.counts, done.tokens, done.logprobs
        lane = self._lane
        if lane is not None:
            is_alike = record.membership == self._membership and lane.fits(record, done)
            if is_alike and not self._end_tokens.is_any_among(tokens):
                lane.back.append(tokens)
                lane.newest = record
                return Returned(record, lane.rows, lane.requests, counts, tokens, logprobs)
            self._write_down()
        check_counts(record, done)
        drafted, lives = done.drafted, None
        if record.membership != self._membership:
            lives = self._lives == record.lives
            rows, counts, tokens, logprobs, drafted = of_living(done, lives[rows])
        over: list[Over] = []
        if record.drafts is None:
            over = self._accept_one_each(rows, tokens)
        else:
            counts, places, over = self._accept_some(rows, counts, tokens)
            tokens, logprobs = tokens[places], take_positions(logprobs, places)
        column = behind(record, rows, counts, done.late, self.is_served)
        if column is not None:
            record = self._slip(record, column)
        if lives is None:
            self._settled = record.ends
        else:
            np.copyto(self._settled, record.ends, where=lives)
        return Returned(
            record=record,
            rows=rows,
            requests=self._who(rows),
            counts=counts,
            tokens=tokens,
            logprobs=logprobs,
            over=over,
            failed=[(self.occupant(row), reason) for row, reason in done.failed if self.is_served(record, row)],
            prompt_logprobs=self._prompt_logprobs(record, done.prompt_logprobs),
            silent=[self.occupant(row) for row in self._silent if self._settled[row] >= self._last[row]],
            drafted=drafted,
            embeddings={
                self.occupant(part.row).request: part.embedding
                for part in done.pooled
                if self.is_served(record, part.row)
            },
        )

    def is_served(self, record: StepRecord, row: int) -> bool:
        """Whether the row still lives the life that this step served."""
        return bool(self._lives[row] == record.lives[row]) and self._occupants[row] is not None

    def _slip(self, record: StepRecord, column: Int32) -> StepRecord:
        """Rows are behind what was planned, in this step and in those that left since."""
        self._write_down()
        self._lane = None
        self._computed = self._computed - column
        self._known -= column
        self.in_flight = deque(other.short_of(column) for other in self.in_flight)
        return record.short_of(column)

    def _accept_one_each(self, rows: Int32, tokens: Int32) -> list[Over]:
        """Each row got a token. Returns who is over."""
        self._tokens.append_one_each(rows, tokens)
        accepted = self._accepted.take(rows)
        accepted += 1
        self._accepted[rows] = accepted
        ends = self._end_tokens.among(tokens)
        ends |= accepted >= self._limit.take(rows)
        if not is_any(ends):
            return []
        rows = rows[ends]
        return self._cut(rows, np.ones_like(rows), tokens[ends], self._limit[rows] - accepted[ends] + 1)[2]

    def _accept_some(self, rows: Int32, counts: Int32, tokens: Int32) -> tuple[Int32, Int64, list[Over]]:
        """Rows got several tokens. Returns how many of each count, the places of those, and who is over."""
        accepted = self._accepted.take(rows)
        rooms = self._limit.take(rows) - accepted
        over: list[Over] = []
        places = np.arange(len(tokens))
        if self._end_tokens.is_any_among(tokens) or (counts >= rooms).any():
            counts, places, over = self._cut(rows, counts, tokens, rooms)
        self._tokens.append_some(rows, counts, tokens[places])
        self._accepted[rows] = accepted + counts
        return counts, places, over

    def _cut(self, rows: Int32, counts: Int32, tokens: Int32, rooms: Int32) -> tuple[Int32, Int64, list[Over]]:
        counts, places, over = cut(rows, counts, tokens, rooms, lambda row: self.occupant(row).end_token_ids)
        return counts, places, [Over(self.occupant(row), token) for row, token in over]

    def _prompt_logprobs(
        self, record: StepRecord, found: tuple[PromptLogprobs, ...]
    ) -> list[tuple[RequestId, PromptLogprobs]]:
        told = []
        for part in found:
            if self.is_served(record, part.row):
                sequence = self.occupant(part.row)
                sequence.reported = max(sequence.reported, part.start + len(part.tokens))
                told.append((sequence.request, part))
        return told

    def _who(self, rows: Int32) -> tuple[RequestId, ...]:
        return self._requests.of(rows, self._membership)
