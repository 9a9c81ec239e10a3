"""Plans one step after another: what to ask of memory, what the executor is told, what a returned step brings.

The scheduler owns one and sends what it makes: `Reserve` to the KV manager, and for its `Granted` a `Step` to the
executor. It knows the requests' places (roster) and columns (running); it ends nobody.

INVARIANT: a row that was emptied is told to the KV manager in the next `Reserve` and to the executor in the next
`Step`, each once; nothing in between may use it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items

import numpy as np
from numpy.typing import NDArray

from asyncpage.core.admission import SchedulerSettings
from asyncpage.core.draft_length import DraftLengths
from asyncpage.core.policy import VICTIM_POLICIES, Policy
from asyncpage.core.prefill_slice import PrefillSlice
from asyncpage.core.returned import Returned
from asyncpage.core.roster import Roster
from asyncpage.core.running import Running
from asyncpage.core.sequence import Sequence
from asyncpage.core.suspects import progress
from asyncpage.messages import (
    EMPTY,
    Admission,
    Candidate,
    Granted,
    Int32,
    NewRow,
    Released,
    RequestId,
    Reserve,
    Started,
    Step,
    StepDone,
)

COUNTERS = (
    "preemptions",
    "recomputed_tokens",
    "prompt_tokens",
    "cached_tokens",
    "parked",
    "draft_tokens",
    "accepted_draft_tokens",
)


class StepPlanner:
    """`started`: requests that got a row for the first time, `sent_back`: that lost theirs, since somebody looked."""

    def __init__(self, settings: SchedulerSettings, policy: Policy) -> None:
        self.running = Running(
            rows=settings.rows,
            block_size=settings.block_size,
            max_tokens=settings.max_tokens,
            vocab_size=settings.vocab_size,
            policy=policy,
            victims=VICTIM_POLICIES[settings.victims],
        )
        self._lengths = DraftLengths(settings.rows, settings.most_drafts) if settings.most_drafts else None
        target_us = settings.itl_target_us
        self._slice = PrefillSlice(target_us, settings.block_size, settings.budget_tokens) if target_us else None
        self.roster = Roster(
            self.running,
            policy,
            rows=settings.rows,
            block_size=settings.block_size,
            fairness_bound=settings.fairness_bound,
            adapter_slots=settings.adapter_slots,
        )
        self.epoch = 1
        self.is_settling = False
        self.started: list[Started] = []
        self.sent_back: list[Sequence] = []
        self.counts = dict.fromkeys(COUNTERS, 0)
        self._settings = settings
        self._wants_hits = policy.wants_hits
        self._number = 0
        self._is_owed = False  # the KV manager holds blocks back for a step that was in flight when it last settled
        self._is_saving = False  # blocks wait to be saved: steps without rows carry them when nothing runs
        self._has_drafts = False  # the last `Reserve` asked for some
        # Rows that do, where the next step may have prompts beside them.
        self._decoding: NDArray[np.bool_] | None = None
        self._with_prompts: deque[tuple[int, int, int]] = deque()  # steps in flight: number, rows that decode, tokens
        self._free_blocks = 0  # at the last settlement; a step begins with no fewer
        self._released: list[Released] = []
        self._removed: list[int] = []
        self._granted = 0  # further steps like the last one, for which the KV manager has given blocks

    def leave(self, sequence: Sequence, most_tokens: int) -> None:
        """A request is over, of which the first `most_tokens` count."""
        tail = self.running.tail(sequence, most_tokens) if sequence.row >= 0 else b""
        row = self.roster.remove(sequence)
        if row is not None:
            self._released.append(Released(row, tail))
            self._removed.append(row)

    def next(self, *, may_leave: bool) -> Reserve | Step | None:
        """What to ask for the next step, or that step where it is granted already. None: nothing to do.

        Without `may_leave` only what there is to give back.
        """
        running, settings, roster = self.running, self._settings, self.roster
        # A suspect is alone only if nothing else is in flight, so the pipeline is one deep while any is tried.
        depth = settings.depth if not roster.quarantine.has_suspects else 1
        if not may_leave or len(running.in_flight) >= depth:
            return self._reserve(running.no_wants, 0, settings.budget_tokens, ()) if self._released else None
        is_disturbed = self._released or self._is_saving or roster.may_change or self._waits_for_hits
        if self._granted and running.may_go_on and not is_disturbed:
            self._granted -= 1
            self._number += 1
            return Step(self._number, self.epoch, *running.launch_again(self._number, self.epoch))
        for row in roster.make_way():
            self._released.append(Released(row))
            self._removed.append(row)
        candidates = roster.candidates(settings.budget_tokens)
        wants, tokens = running.wants(settings.long_prefill_tokens)
        wants, tokens, budget_tokens = self._cut(wants, tokens, has_candidates=bool(candidates))
        if tokens or candidates or self._released or self._is_saving or (self._is_owed and not running.in_flight):
            drafts = EMPTY
            if self._lengths is not None and tokens:
                awaited = sum(candidate.known for candidate in candidates)  # a draft keeps no prompt waiting
                budget = settings.budget_tokens - awaited
                drafts = self._lengths.choose(running.room_for_drafts(wants), tokens, budget)
            return self._reserve(wants, tokens, budget_tokens, candidates, drafts)
        return None

    def _cut(self, wants: Int32, tokens: int, *, has_candidates: bool) -> tuple[Int32, int, int]:
        """What rows want, its sum, and the step's budget, where prompts are not to hold up rows that decode.

        Those come first, whatever the order: a row without a token waits for a step more.
        """
        running, most = self.running, self._settings.budget_tokens
        self._decoding = None
        if self._slice is None or not (has_candidates or tokens > len(running)):
            return wants, tokens, most
        self._decoding = decoding = running.decoding(wants)
        decodes = int(decoding.sum())
        if not decodes:
            return wants, tokens, most
        left = min(self._slice.tokens, most - decodes)
        if tokens - decodes > left:
            order = running.order()
            asked = np.where(decoding, 0, wants)[order]
            wants = wants.copy()
            wants[order] = np.where(decoding[order], wants[order], np.clip(left - (asked.cumsum() - asked), 0, asked))
            tokens = decodes + left
        return wants, tokens, decodes + left

    def _reserve(
        self, wants: Int32, tokens: int, budget_tokens: int, candidates: tuple[Candidate, ...], drafts: Int32 = EMPTY
    ) -> Reserve:
        """`budget_tokens`: of the step without `drafts`."""
        running, settings = self.running, self._settings
        self._has_drafts = bool(len(drafts))
        if self._has_drafts:
            wants = wants + drafts
            tokens += int(drafts.sum())
            budget_tokens = min(settings.budget_tokens, budget_tokens + int(drafts.sum()))
        self._is_owed = bool(running.in_flight)
        self._granted = 0
        self._number += 1
        self.is_settling = True
        # As many blocks as the running rows could take at most, rounded up by a block for each.
        most = (tokens // settings.block_size + 2 * len(running)) * settings.groups
        filled, filled_tokens = running.take_full()
        reserve = Reserve(
            number=self._number,
            returned=(running.in_flight[0].number if running.in_flight else self._number) - 1,
            order=running.order(),
            computed=running.computed.copy(),
            wants=wants,
            tokens=tokens,
            victims=EMPTY if self._free_blocks >= most else running.victims(),
            candidates=candidates,
            budget_tokens=budget_tokens,
            free_rows=running.free_rows(len(candidates)),
            released=tuple(self._released),
            filled=filled,
            filled_tokens=filled_tokens,
            equal_steps=1 if candidates or self._waits_for_hits else self._equal_steps(wants, tokens),
            drafts=drafts,
            most_behind=sum(record.most_behind for record in running.in_flight),
        )
        self._released.clear()
        return reserve

    def _equal_steps(self, wants: Int32, tokens: int) -> int:
        if self._lengths is None:
            return self.running.equal_steps(wants, tokens)
        return 1 if self._has_drafts else min(self._lengths.equal_steps, self.running.equal_steps(wants, tokens))

    @property
    def _waits_for_hits(self) -> bool:
        """Whether news of what is cached, which a settlement brings, may change who is next."""
        return self._wants_hits and self.roster.waiting > 0

    def apply(self, granted: Granted) -> Step | None:
        """The answer to the last `Reserve`: move requests in and out of rows. Returns the step to send, if any."""
        self.is_settling = False
        self._free_blocks = granted.free_blocks
        self._is_saving = bool(len(granted.saves))
        running, roster = self.running, self.roster
        if granted.parked:
            roster.park(granted.parked)
            self.counts["parked"] += len(granted.parked)
        if granted.woken:
            roster.wake(granted.woken)
        if granted.hits:
            roster.rate(granted.hits)
        if granted.victims:
            self._preempt(granted.victims)
        added = tuple(map(self._open, granted.admitted)) if granted.admitted else ()
        if not (len(granted.rows) or len(granted.saves)):
            return None
        self._granted = granted.steps - 1
        if self._decoding is not None:
            beside = ~self._decoding[granted.rows]
            tokens = int(granted.counts[beside].sum())
            if tokens:
                self._with_prompts.append((granted.number, len(beside) - int(beside.sum()), tokens))
        running.launch(
            granted.number,
            self.epoch,
            granted.rows,
            granted.counts,
            is_first_of_many=bool(self._granted),
            has_drafts=self._has_drafts,
        )
        step = Step(
            number=granted.number,
            epoch=self.epoch,
            rows=granted.rows,
            counts=granted.counts,
            removed=np.array(self._removed, dtype=np.int32) if self._removed else EMPTY,
            added=added,
            blocks=granted.blocks,
            copies=granted.copies,
            saves=granted.saves,
            loads=granted.loads,
        )
        self._removed.clear()
        roster.let_served_children_wait()
        return step

    def settle(self, done: StepDone) -> Returned | None:
        """A step is back; None when it belongs to a past epoch."""
        returned = self.running.settle(done)
        if returned is not None:
            quarantine = self.roster.quarantine
            if quarantine.is_alert:
                quarantine.step_finished(progress(self.running, returned.record))
            if self._lengths is not None:
                self._learn(self._lengths, returned, done)
            if self._slice is not None and self._with_prompts and self._with_prompts[0][0] == done.number:
                _, decodes, prefill = self._with_prompts.popleft()
                self._slice.learn(decodes, prefill, done.elapsed_us)
        return returned

    def _learn(self, lengths: DraftLengths, returned: Returned, done: StepDone) -> None:
        """What came of a step's drafts, and what it took."""
        record, drafted = returned.record, int(done.drafted.sum())
        tokens = int(record.column.sum()) + drafted - (0 if record.drafts is None else int(record.drafts.sum()))
        lengths.learn(
            returned.rows,
            returned.counts,
            returned.drafted,
            tokens=tokens,
            elapsed_us=done.elapsed_us,
            draft_us=done.draft_us,
        )
        if drafted:
            self.counts["draft_tokens"] += int(returned.drafted.sum())  # as of what stood, of those that still live
            self.counts["accepted_draft_tokens"] += int((returned.counts - 1).sum())

    def stir(self, woken: Items[RequestId]) -> None:
        """What these waited for has come from outside the device, and blocks may wait to go there."""
        self.roster.wake(woken)
        self._is_saving = True

    def rewind(self) -> None:
        """Every running request waits again, with every token it has got; no step is in flight any more."""
        for sequence in self.running.occupants():
            self.roster.send_back(sequence)
            self.sent_back.append(sequence)
        self.roster.wake_all()
        self.running.rewind()
        self._released, self._removed = [], []
        self._with_prompts.clear()
        self._granted = 0
        self.epoch += 1

    def _preempt(self, rows: Items[int]) -> None:
        for row in rows:
            sequence = self.running.occupant(row)
            self._removed.append(self.roster.send_back(sequence))
            self.sent_back.append(sequence)
        self.counts["preemptions"] += len(rows)

    def _open(self, admission: Admission) -> NewRow:
        """A waiting request moves into the row that the settlement gave it."""
        sequence = self.roster.open(admission)
        if self._lengths is not None:
            self._lengths.open(admission.row)
        if not sequence.has_started:
            sequence.has_started = True
            self.counts["prompt_tokens"] += sequence.prompt_tokens
            self.counts["cached_tokens"] += admission.computed
            self.started.append(Started(sequence.request, admission.computed))
        else:
            self.counts["recomputed_tokens"] += max(0, sequence.computed - admission.computed)
        return sequence.as_new_row(admission)
