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

from asyncpage.actors.base import Actor
from asyncpage.clock import Clock, Timer
from asyncpage.core.admission import SchedulerSettings, refusal
from asyncpage.core.pace import Pace
from asyncpage.core.planner import StepPlanner
from asyncpage.core.policy_registry import load_policy
from asyncpage.core.sequence import Sequence, sequences
from asyncpage.core.suspects import held_one, unreturned
from asyncpage.errors import Failure, UnknownMessage
from asyncpage.messages import (
    EMPTY,
    Accepted,
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
    FinishReason,
    Granted,
    Int32,
    Logprobs,
    PromptLogprobs,
    Refused,
    RequestId,
    Rewind,
    Step,
    StepDone,
    StepFailed,
    StepTokens,
    Stirred,
    Unwatch,
    Watch,
    frontend_of,
)
from asyncpage.pipes.mailbox import Address


class Scheduler(Actor):
    """One step after another: `Reserve`, `Granted`, `Step`, `StepDone`, `StepTokens`.

    A grant may hold for further steps of the same rows; these need neither `Reserve` nor `Granted`.
    """

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
        policy = load_policy(settings.policy)
        self._wants_hits = policy.wants_hits
        self._planner = StepPlanner(settings, policy)
        self._roster = self._planner.roster
        self._deadlines: dict[RequestId, Timer] = {}
        self._ends: list[End] = []
        self._held: deque[object] = deque()  # what came while a settlement was out
        self._is_idle = True  # the last settlement ran nothing and nothing has come since
        self._is_ready = True
        self._is_draining = False
        self._gone: str | None = None
        self._arrivals = 0
        self._pace = Pace()
        self._counts = dict.fromkeys(("steps", "generated_tokens", "executor_losses"), 0)

    # --- messages ----------------------------------------------------------------------------------------------------

    def started(self, clock: Clock) -> None:
        self._clock = clock

    def receive(self, message: object) -> None:
        if self._planner.is_settling and not isinstance(message, Granted):
            self._held.append(message)
        else:
            self._handle(message)
            while self._held and not self._planner.is_settling:
                held = self._held.popleft()
                try:
                    self._handle(held)
                except Exception as error:
                    if not self.fail(held, error):
                        raise

    def batch_end(self) -> None:
        planner = self._planner
        while not planner.is_settling and not self._is_idle:
            move = planner.next(may_leave=self._is_ready)
            if move is None:
                break
            (self._executor if isinstance(move, Step) else self._kv_manager).send(move)
        if self._ends or planner.started:
            self._flush((), EMPTY, EMPTY)

    def fail(self, message: object, error: Exception) -> bool:
        if not isinstance(message, Admit) or any(map(self._roster.find, message.requests)):
            return False  # half accepted: somebody may never be told of an end, unless the house falls and tells all
        self._refuse(message, Failure(500, f"the scheduler could not take the request: {error}", "internal_error"))
        return True

    def stats(self) -> Mapping[str, float]:
        running = self._planner.running
        now = {"running": len(running), "waiting": self._roster.waiting, "in_flight": len(running.in_flight)}
        return {**now, **self._counts, **self._planner.counts}

    def _handle(self, message: object) -> None:
        self._is_idle = False
        match message:
            case StepDone():
                self._step_done(message)
            case Granted():
                self._granted(message)
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
                self._planner.epoch = max(self._planner.epoch, message.epoch)
                self._is_ready = True
            case ExecutorGone():
                self._executor_gone(message)
            case Drain():
                self._is_draining = True
            case Stirred():
                self._planner.stir(message.woken)
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
        self._watch(made)
        for sequence in made:
            self._frontends[frontend_of(sequence.request)].send(Accepted(sequence.request, sequence.prompt_tokens))
            echo = admit.tokens if admit.options.echo else b""
            self._detokenizer.send(Expect(sequence.request, sequence.sampling, sequence.prompt_tokens, echo))
            if sequence.is_complete and not sequence.is_silent:
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
            self._leave(sequence, sequence.prompt_tokens + message.tokens)

    def _expired(self, message: Expired) -> None:
        sequence = self._roster.find(message.request)
        if sequence is not None:
            self._deadlines.pop(message.request)
            failure = Failure(504, "the request's deadline has passed", "timeout", "timeout")
            self._end(sequence, "error", failure=failure)

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        stop_token: int | None = None,
        failure: Failure | None = None,
        embedding: bytes = b"",
    ) -> None:
        """The one end that the scheduler gives a request."""
        self._ends.append(End(sequence.request, reason, stop_token, failure, embedding))
        if reason in ("stop", "length"):
            self._pace.finished(self._clock.now())
        self._leave(sequence)

    def _end_silent(self, sequence: Sequence, embedding: bytes | None) -> None:
        """Its prompt is computed, and what that tells has come; a vector that was asked for is part of the end."""
        if sequence.options.pooling is None:
            self._end(sequence, "length")
        elif embedding is not None:
            self._end(sequence, "stop", embedding=embedding)
        else:
            text = "the executor computed the prompt and brought no embedding of it"
            self._end(sequence, "error", failure=Failure(500, text, "internal_error"))

    def _leave(self, sequence: Sequence, tokens: int | None = None) -> None:
        """Forget a request that is over, of which the first `tokens` count: give back row, blocks and timer."""
        timer = self._deadlines.pop(sequence.request, None)
        if timer is not None:
            timer.cancel()
        if sequence.row < 0:
            self._kv_manager.send(Unwatch(sequence.request))
        self._planner.leave(sequence, sequence.limit if tokens is None else tokens)

    def _watch(self, waiting: Items[Sequence]) -> None:
        """Have the KV manager tell how much of these is cached, when the policy asks for it."""
        if self._wants_hits:
            for sequence in waiting:
                if sequence.options.use_cache:
                    self._kv_manager.send(Watch(sequence.request, sequence.prefix))

    # --- a step ------------------------------------------------------------------------------------------------------

    def _granted(self, granted: Granted) -> None:
        step = self._planner.apply(granted)
        if step is not None:
            self._executor.send(step)
        else:
            self._is_idle = not (granted.woken or granted.victims)  # others may run on what those have given back
        self._watch_sent_back()

    def _watch_sent_back(self) -> None:
        if self._planner.sent_back:
            self._watch(self._planner.sent_back)
            self._planner.sent_back.clear()

    def _step_done(self, done: StepDone) -> None:
        returned = self._planner.settle(done)
        if returned is None:
            return
        self._counts["steps"] += 1
        self._counts["generated_tokens"] += len(returned.tokens)
        for sequence, text in returned.failed:
            self._end(sequence, "error", failure=Failure(500, text, "row_failed"))
        for over in returned.over:
            if over.sequence.row >= 0:
                self._end(over.sequence, "length" if over.stop_token is None else "stop", stop_token=over.stop_token)
        for sequence in returned.silent:
            if sequence.row >= 0:
                self._end_silent(sequence, returned.embeddings.get(sequence.request))
        self._flush(
            returned.requests,
            returned.counts,
            returned.tokens,
            returned.logprobs,
            tuple(returned.prompt_logprobs),
            returned.drafted,
        )

    def _flush(
        self,
        requests: tuple[RequestId, ...],
        counts: Int32,
        tokens: Int32,
        logprobs: Logprobs | None = None,
        prompt_logprobs: tuple[tuple[RequestId, PromptLogprobs], ...] = (),
        drafted: Int32 = EMPTY,
    ) -> None:
        started, ends = tuple(self._planner.started), tuple(self._ends)
        self._planner.started.clear()
        self._ends.clear()
        self._detokenizer.send(StepTokens(requests, counts, tokens, logprobs, prompt_logprobs, started, ends, drafted))

    # --- losses ------------------------------------------------------------------------------------------------------

    def _step_failed(self, failed: StepFailed) -> None:
        if failed.epoch != self._planner.epoch:
            return
        running, number = self._planner.running, failed.number
        poison = self._roster.quarantine.step_failed(unreturned(running, number), was_alone=held_one(running, number))
        self._rewind(forget=False)
        self._end_poison(poison, failed.reason)

    def _executor_lost(self, lost: ExecutorLost) -> None:
        self._counts["executor_losses"] += 1
        self._is_ready = False
        running = self._planner.running
        poison = self._roster.quarantine.executor_lost(unreturned(running), was_alone=held_one(running))
        self._rewind(forget=True)
        self._end_poison(poison, lost.reason)

    def _rewind(self, *, forget: bool) -> None:
        """Every running request waits again, with every token it has got; no step is in flight any more."""
        self._planner.rewind()
        self._kv_manager.send(Rewind(forget=forget))
        self._watch_sent_back()

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
