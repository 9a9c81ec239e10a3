"""The scheduler: decides who runs and in what order, and gives every accepted request its one end.

The tokenizer sends `Admit` and `Cancel`; the KV manager answers `Reserve` with `Granted`; the executor's near end
sends `StepDone`, `StepFailed` and news of losses; the detokenizer sends `Ended`. It sends `Step` to the executor,
`Expect` and `StepTokens` to the detokenizer, `Accepted` and `Refused` to front ends.

INVARIANT: an accepted request leaves with exactly one `End` here or one `Ended` from the detokenizer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Items
from functools import partial

import numpy as np

from asyncpage.actors.base import Actor
from asyncpage.clock import Clock, Timer
from asyncpage.core.admission import SchedulerSettings, refusal
from asyncpage.core.pace import Pace
from asyncpage.core.policy import POLICIES
from asyncpage.core.roster import Roster
from asyncpage.core.running import columns_of
from asyncpage.core.sequence import Sequence, sequences
from asyncpage.errors import Failure, UnknownMessage
from asyncpage.messages import (
    EMPTY,
    Accepted,
    Admission,
    Admit,
    Cancel,
    Drain,
    End,
    Ended,
    ExecutorGone,
    ExecutorLost,
    ExecutorReady,
    Expect,
    Expired,
    FilledBlocks,
    FinishReason,
    Granted,
    NewRow,
    Refused,
    RequestId,
    Reserve,
    Rewind,
    Started,
    Step,
    StepDone,
    StepFailed,
    StepTokens,
    frontend_of,
)
from asyncpage.pipes.mailbox import Address


class Scheduler(Actor):
    """One step after another: `Reserve`, `Granted`, `Step`, `StepDone`, `StepTokens`."""

    name = "scheduler"

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        own: Address,
        kv_manager: Address,
        executor: Address,
        detokenizer: Address,
        frontends: Items[Address],
    ) -> None:
        self._settings = settings
        self._own = own
        self._kv_manager = kv_manager
        self._executor = executor
        self._detokenizer = detokenizer
        self._frontends = frontends
        policy = POLICIES[settings.policy]
        self._roster = Roster(rows=settings.rows, block_size=settings.block_size, policy=policy)
        self._running = self._roster.running
        self._deadlines: dict[RequestId, Timer] = {}
        self._ends: list[End] = []
        self._started: list[Started] = []
        self._held: deque[object] = deque()  # what came while a settlement was out
        self._is_settling = False
        self._is_idle = True  # the last settlement ran nothing and nothing has come since
        self._is_owed = False  # the KV manager holds blocks back for a step that was in flight when it last settled
        self._is_ready = True
        self._is_draining = False
        self._gone: str | None = None
        self._number = 0
        self._epoch = 1
        self._arrivals = 0
        self._released: list[int] = []  # rows closed, for the KV manager
        self._removed: list[int] = []  # rows closed, for the executor
        self._filled: list[FilledBlocks] = []
        self._pace = Pace()
        self._counts = dict.fromkeys(
            ("preemptions", "steps", "prompt_tokens", "generated_tokens", "cached_tokens", "executor_losses"), 0
        )

    # --- messages ----------------------------------------------------------------------------------------------------

    def started(self, clock: Clock) -> None:
        self._clock = clock

    def receive(self, message: object) -> None:
        if self._is_settling and not isinstance(message, Granted):
            self._held.append(message)
        else:
            self._handle(message)
            while self._held and not self._is_settling:
                held = self._held.popleft()
                try:
                    self._handle(held)
                except Exception as error:
                    if not self.fail(held, error):
                        raise

    def batch_end(self) -> None:
        if not self._is_settling and not self._is_idle:
            self._ask_for_step()
        if self._ends or self._started:
            self._flush(StepTokens((), EMPTY, EMPTY, started=tuple(self._started), ends=tuple(self._ends)))

    def fail(self, message: object, error: Exception) -> bool:
        if not isinstance(message, Admit) or any(map(self._roster.find, message.requests)):
            return False  # half accepted: somebody may never be told of an end, unless the house falls and tells all
        self._refuse(message, Failure(500, f"the scheduler could not take the request: {error}", "internal_error"))
        return True

    def stats(self) -> Mapping[str, float]:
        now = {"running": len(self._running), "waiting": self._roster.waiting}
        return {**now, "in_flight": len(self._running.in_flight), **self._counts}

    def _handle(self, message: object) -> None:
        self._is_idle = False
        match message:
            case Granted():
                self._granted(message)
            case StepDone():
                self._step_done(message)
            case Admit():
                self._admit(message)
            case Cancel() | Ended():
                self._client_ended(message)
            case Expired():
                self._expired(message)
            case StepFailed():
                self._step_failed(message)
            case ExecutorLost():
                self._executor_lost(message)
            case ExecutorReady():
                self._epoch = max(self._epoch, message.epoch)
                self._is_ready = True
            case ExecutorGone():
                self._executor_gone(message)
            case Drain():
                self._is_draining = True
            case _:
                raise UnknownMessage(self, message)

    # --- requests come and go ----------------------------------------------------------------------------------------

    def _admit(self, admit: Admit) -> None:
        failure = self._reason_to_refuse(admit)
        if failure is not None:
            self._refuse(admit, failure)
            return
        settings = self._settings
        made = sequences(
            admit,
            arrival=self._arrivals,
            max_tokens=settings.max_tokens,
            block_size=settings.block_size,
            eos_ids=settings.eos_ids,
            seed=settings.seed,
        )
        self._arrivals += len(made)
        self._roster.add(made)
        for sequence in made:
            self._frontends[frontend_of(sequence.request)].send(Accepted(sequence.request, sequence.prompt_tokens))
            echo = admit.tokens if admit.options.echo else b""
            self._detokenizer.send(Expect(sequence.request, sequence.sampling, sequence.prompt_tokens, echo))
            if sequence.is_complete and not (sequence.wants_prompt_logprobs and sequence.prompt_tokens > 1):
                self._end(sequence, "length")
            elif admit.options.deadline is not None:
                delay_s = max(0.0, admit.options.deadline - self._clock.now())
                expire = partial(self._own.send, Expired(sequence.request))
                self._deadlines[sequence.request] = self._clock.call_later(delay_s, expire)

    def _reason_to_refuse(self, admit: Admit) -> Failure | None:
        if self._gone is not None:
            return Failure(503, f"the executor is gone: {self._gone}", "executor_gone")
        if self._is_draining:
            return Failure(503, "the server is shutting down; send the request to another one", "draining", None, 5.0)
        retry_after_s = self._pace.retry_after_s(self._roster.waiting)
        return refusal(admit, self._settings, living=len(self._roster), retry_after_s=retry_after_s)

    def _refuse(self, admit: Admit, failure: Failure) -> None:
        for request in admit.requests:
            self._frontends[frontend_of(request)].send(Refused(request, failure))

    def _client_ended(self, message: Cancel | Ended) -> None:
        sequence = self._roster.find(message.request)
        if sequence is None:
            return
        if isinstance(message, Cancel):
            self._end(sequence, "abort")
        else:
            self._pace.finished(self._clock.now())
            self._leave(sequence)

    def _expired(self, message: Expired) -> None:
        sequence = self._roster.find(message.request)
        if sequence is not None:
            self._deadlines.pop(message.request)
            failure = Failure(504, "the request's deadline has passed", "timeout", "timeout")
            self._end(sequence, "error", failure=failure)

    def _end(
        self, sequence: Sequence, reason: FinishReason, *, stop_token: int | None = None, failure: Failure | None = None
    ) -> None:
        """The one end that the scheduler gives a request."""
        self._ends.append(End(sequence.request, reason, stop_token, failure))
        if reason in ("stop", "length"):
            self._pace.finished(self._clock.now())
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Forget a request that is over; its row, blocks and timer are given back."""
        timer = self._deadlines.pop(sequence.request, None)
        if timer is not None:
            timer.cancel()
        row = self._roster.remove(sequence)
        if row is not None:
            self._emptied(row)

    def _emptied(self, *rows: int) -> None:
        """Rows that the KV manager and the executor do not know to be empty yet."""
        self._released += rows
        self._removed += rows

    # --- a step ------------------------------------------------------------------------------------------------------

    def _ask_for_step(self) -> None:
        """Send `Reserve` when a step may leave and there is something to run, or to give blocks back."""
        running, settings = self._running, self._settings
        # A suspect is alone only if nothing else is in flight, so the pipeline is one deep while any is tried.
        depth = settings.depth if self._roster.quarantine.allowed is None else 1
        may_leave = self._is_ready and len(running.in_flight) < depth
        if may_leave:
            self._emptied(*self._roster.make_way())
        rows, wants = running.wants(settings.long_prefill_tokens) if may_leave else (EMPTY, EMPTY)
        offered = self._roster.candidates(settings.budget_tokens) if may_leave else ()
        is_owed = self._is_owed and not running.in_flight
        if not (len(rows) or offered or self._released or is_owed):
            return
        self._is_owed = bool(running.in_flight)
        self._number += 1
        self._is_settling = True
        reserve = Reserve(
            number=self._number,
            returned=(running.in_flight[0].number if running.in_flight else self._number) - 1,
            rows=rows,
            computed=running.computed[rows],
            wants=wants,
            victims=rows[::-1],
            candidates=offered,
            budget_tokens=settings.budget_tokens,
            free_rows=running.free_rows(len(offered)),
            released=tuple(self._released),
            filled=tuple(self._filled),
        )
        self._released.clear()
        self._filled.clear()
        self._kv_manager.send(reserve)

    def _granted(self, granted: Granted) -> None:
        self._is_settling = False
        running = self._running
        for row in granted.victims:
            self._removed.append(self._roster.send_back(running.occupant(row)))
        self._counts["preemptions"] += len(granted.victims)
        added = tuple(self._open(admission) for admission in granted.admitted)
        if len(granted.rows) == 0:
            self._is_idle = True
            return
        running.launch(granted.number, self._epoch, granted.rows, granted.counts)
        step = Step(
            number=granted.number,
            epoch=self._epoch,
            rows=granted.rows,
            counts=granted.counts,
            removed=np.array(self._removed, dtype=np.int32),
            added=added,
            blocks=granted.blocks,
            copies=granted.copies,
        )
        self._removed.clear()
        self._executor.send(step)
        for row in granted.rows.tolist():
            leader = running.occupant(row)
            if leader.children and running.computed[row] >= leader.prompt_tokens - 1:
                self._roster.let_children_wait(leader)

    def _open(self, admission: Admission) -> NewRow:
        """A waiting request moves into the row that the settlement gave it."""
        sequence = self._roster.open(admission)
        if not sequence.has_started:
            sequence.has_started = True
            self._counts["prompt_tokens"] += sequence.prompt_tokens
            self._counts["cached_tokens"] += admission.computed
            self._started.append(Started(sequence.request, admission.computed))
        return sequence.as_new_row(admission)

    def _step_done(self, done: StepDone) -> None:
        settled = self._running.settle(done)
        if settled is None:
            return
        self._counts["steps"] += 1
        self._counts["generated_tokens"] += sum(piece.count for piece in settled.sampled)
        self._filled += settled.filled
        self._roster.quarantine.step_finished({sequence.request: end for sequence, end in settled.progress})
        for sequence, reason in settled.failed:
            self._end(sequence, "error", failure=Failure(500, reason, "row_failed"))
        for piece in settled.sampled:
            stop_token = piece.sequence.end_token_in_last(piece.count)
            if stop_token is not None:
                self._end(piece.sequence, "stop", stop_token=stop_token)
            elif piece.sequence.is_complete:
                self._end(piece.sequence, "length")
        for sequence, end in settled.progress:
            if sequence.row >= 0 and sequence.is_complete and end >= sequence.limit - 1:
                self._end(sequence, "length")  # it asked for no tokens, only for its prompt's logprobs
        counts, tokens, logprobs = columns_of(settled.sampled, done)
        self._flush(
            StepTokens(
                requests=tuple(piece.sequence.request for piece in settled.sampled),
                counts=counts,
                tokens=tokens,
                logprobs=logprobs,
                prompt_logprobs=tuple(settled.prompt_logprobs),
                started=tuple(self._started),
                ends=tuple(self._ends),
            )
        )

    def _flush(self, tokens: StepTokens) -> None:
        self._started.clear()
        self._ends.clear()
        self._detokenizer.send(tokens)

    # --- losses ------------------------------------------------------------------------------------------------------

    def _step_failed(self, failed: StepFailed) -> None:
        if failed.epoch != self._epoch:
            return
        poison = self._roster.quarantine.step_failed(self._running.unreturned(failed.number))
        self._rewind(forget=False)
        self._end_poison(poison, failed.reason)

    def _executor_lost(self, lost: ExecutorLost) -> None:
        self._counts["executor_losses"] += 1
        self._is_ready = False
        poison = self._roster.quarantine.executor_lost(self._running.unreturned())
        self._rewind(forget=True)
        self._end_poison(poison, lost.reason)

    def _rewind(self, *, forget: bool) -> None:
        """Every running request waits again, with every token it has got; no step is in flight any more."""
        for sequence in self._running.occupants():
            self._roster.send_back(sequence)
        self._running.in_flight.clear()
        self._released, self._removed, self._filled = [], [], []
        self._epoch += 1
        self._kv_manager.send(Rewind(forget=forget))

    def _end_poison(self, poison: RequestId | None, reason: str) -> None:
        sequence = None if poison is None else self._roster.find(poison)
        if sequence is not None:
            text = f"the model failed whenever it ran this request, also alone: {reason}"
            self._end(sequence, "error", failure=Failure(500, text, "poison"))

    def _executor_gone(self, gone: ExecutorGone) -> None:
        self._is_ready = False
        self._gone = gone.reason
        self._rewind(forget=True)
        failure = Failure(500, f"the executor is gone: {gone.reason}", "executor_gone")
        for sequence in self._roster:
            self._end(sequence, "error", failure=failure)
