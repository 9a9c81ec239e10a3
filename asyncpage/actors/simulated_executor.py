"""An executor without a model: answers every step with made-up tokens, at once or after a modelled time.

Takes the place of the executor's near end (`engine.py`, `StandIn`). The scheduler sends `Step`; it sends `StepDone`
to the scheduler.

INVARIANT: a row's tokens depend on its own prompt or seed and on their positions only, so they are the same after a
preemption and whatever runs beside it.
"""

from __future__ import annotations

from collections import deque
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from asyncpage.actors.base import ExecutorEnd
from asyncpage.clock import Clock, Timer
from asyncpage.core.step_latency import StepLatency, chunk_pairs
from asyncpage.errors import ProtocolError, UnknownMessage
from asyncpage.messages import EMPTY, Float32, Handshake, Int32, Logprobs, NewRow, Pooled, Shutdown, Step, StepDone
from asyncpage.pipes.mailbox import Address

_NEVER = 1 << 30  # known tokens of a row that must not sample
_ODD = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio: neighbouring positions fall far apart
_ONE, _HALF, _SHIFT = np.uint64(1), np.uint64(31), np.uint64(33)
_NO_GRAMMAR = "a simulated executor makes up its tokens and follows no grammar; leave the constraint out"
_NO_PROMPT_LOGPROBS = "a simulated executor has no log-probabilities of prompts; leave prompt_logprobs out"


class SimulatedExecutor(ExecutorEnd):
    """Rows in columns, as the real one keeps them, without tokens and blocks.

    `latency` None answers at once. `first_token`, `end_token`: answers are drawn from `first_token` up to before
    `end_token`; None is the whole vocabulary. Greedy rows draw by their prompt, others by their seed.
    """

    def __init__(
        self,
        handshake: Handshake,
        scheduler: Address,
        latency: StepLatency | None = None,
        *,
        first_token: int = 0,
        end_token: int | None = None,
    ) -> None:
        self._handshake = handshake
        self._scheduler = scheduler
        self._latency = latency
        self._first_token = np.int32(first_token)
        self._end_token = np.int32(handshake.vocab_size if end_token is None else end_token)
        self._choice = np.uint64(int(self._end_token) - first_token)
        self._is_closed = False
        self._due: deque[tuple[float, StepDone]] = deque()  # answers that wait for their time, in order
        self._timer: Timer | None = None
        self._free_at = float("-inf")  # when the last step sent so far will be done
        self._last_rows = 0
        self._epoch = 0
        self._failed: list[tuple[int, str]] = []
        self._pooled: list[Pooled] = []
        self._batch: Int32 = EMPTY  # rows of the last step, if every one of them sampled
        self._seen_counts: Int32 = EMPTY  # counts that were looked at and found to be ones
        self._ones: Int32 = EMPTY
        self._ahead = 0  # steps of `_batch` that are not in the columns yet
        self._context = 0  # computed tokens of the last step's rows
        self._most_logprobs = -1
        self._token_logprobs: Float32 = np.empty(0, dtype=np.float32)
        self._top_logprobs: Float32 = np.empty((0, 0), dtype=np.float32)
        self._below: Int32 = EMPTY
        self._forget(64)
        self._counts = {"steps": 0, "rows": 0, "tokens": 0, "step_us": 0, "busy_us": 0}

    @property
    def state(self) -> str:
        return "closed" if self._is_closed else "ready"

    @property
    def pid(self) -> int | None:
        return None

    async def launch_first(self) -> Handshake:
        return self._handshake

    async def closed(self) -> None:
        self._leave()

    def started(self, clock: Clock) -> None:
        self._clock = clock

    def stats(self) -> dict[str, float]:
        return {**self._counts, "is_ready": float(not self._is_closed), "steps_in_flight": float(len(self._due))}

    def receive(self, message: object) -> None:
        match message:
            case Step():
                self._step(message)
            case Shutdown():
                self._leave()
            case _:
                raise UnknownMessage(self, message)

    # --- a step ------------------------------------------------------------------------------------------------------

    def _step(self, step: Step) -> None:
        rows, counts = step.rows, step.counts
        if step.epoch != self._epoch or step.added or len(step.removed):
            self._settle()
            self._change_rows(step)
        elif self._is_steady(rows, counts):
            self._ahead += 1
            self._context += len(rows)
            self._answer_with(step, rows)
            return
        else:
            self._settle()
        caught_up = self._advance(rows, counts) if len(rows) else EMPTY
        self._batch = caught_up if len(caught_up) == len(rows) else EMPTY
        if len(self._ones) != len(caught_up):
            self._ones = np.ones(len(caught_up), dtype=np.int32)
        self._answer_with(step, caught_up)

    def _is_steady(self, rows: Int32, counts: Int32) -> bool:
        """The rows are those of the last step, all of them sampled in it, and each computes that one token now."""
        last = self._batch
        if rows is not last and (len(rows) != len(last) or not (rows == last).all()):
            return False
        if counts is not self._seen_counts:
            if not len(counts) or not (counts == 1).all():
                return False
            self._seen_counts = counts
        self._batch = rows
        return True

    def _settle(self) -> None:
        """Write down how far the rows came in the steady steps since the columns were last up to date."""
        if self._ahead:
            self._known[self._batch] += self._ahead
            self._computed[self._batch] += self._ahead
            self._ahead = 0
        self._batch = EMPTY

    def _advance(self, rows: Int32, counts: Int32) -> Int32:
        """Compute `counts` more tokens of `rows`; returns those that have caught up, which now know one more."""
        computed = self._computed.take(rows)
        computed += counts
        self._computed[rows] = computed
        self._context = int(computed.sum())
        known = self._known.take(rows)
        if known.tobytes() != computed.tobytes():
            left = known - computed
            if int(left.min()) < 0:
                row = int(rows[left.argmin()])
                raise ProtocolError(f"a step computes row {row} up to a token that it does not know")
            rows, known = rows[left == 0], known[left == 0]
        if self._to_pool:
            rows, known = self._pool(rows, known)
        known += 1
        self._known[rows] = known
        self._draws = self._keys.take(rows)
        self._draws += known.astype(np.uint64)
        return rows

    def _pool(self, rows: Int32, known: Int32) -> tuple[Int32, Int32]:
        """Of rows that have caught up, those that sample; the others' vectors are made up here."""
        samples = np.ones(len(rows), dtype=np.bool_)
        for at, row in enumerate(rows.tolist()):
            if (key := self._to_pool.pop(row, None)) is not None:
                samples[at] = False
                self._known[row] = _NEVER
                turn = 2 * np.pi * key / 2**32
                self._pooled.append(Pooled(row, np.array([np.cos(turn), np.sin(turn)], dtype="<f4").tobytes()))
        return rows[samples], known[samples]

    def _answer_with(self, step: Step, rows: Int32) -> None:
        """Answer `step`, in which `rows` sampled, now or when its time has passed."""
        counts = self._counts
        counts["steps"] += 1
        counts["rows"] += len(step.rows)
        counts["tokens"] += len(rows)
        if self._latency is None:
            self._scheduler.send(self._done(step, rows, 0))
        else:
            self._send_later(self._latency, step, rows)

    def _done(self, step: Step, rows: Int32, elapsed_us: int) -> StepDone:
        failed: tuple[tuple[int, str], ...] = ()
        if self._failed:
            failed, self._failed = tuple(self._failed), []
        pooled, self._pooled = tuple(self._pooled), []
        if not len(rows):
            return StepDone(
                step.number, step.epoch, EMPTY, EMPTY, EMPTY, failed=failed, elapsed_us=elapsed_us, pooled=pooled
            )
        # The upper half of a product spreads a 31-bit number evenly over the choice, without a division.
        drawn = self._draws * _ODD
        self._draws += _ONE
        drawn >>= _SHIFT
        drawn *= self._choice
        drawn >>= _HALF
        tokens = drawn.astype(np.int32)
        tokens += self._first_token
        logprobs = self._logprobs(tokens) if self._most_logprobs >= 0 else None
        return StepDone(step.number, step.epoch, rows, self._ones, tokens, logprobs, (), failed, elapsed_us, pooled)

    def _logprobs(self, tokens: Int32) -> Logprobs:
        """The chosen token is the most likely one; those behind it in the vocabulary follow, each half as likely."""
        rows, wide = len(tokens), max(1, self._most_logprobs)
        if self._top_logprobs.shape != (rows, wide):
            top = np.float32(np.log(0.5)) * np.arange(1, wide + 1, dtype=np.float32)
            self._top_logprobs = np.broadcast_to(top, (rows, wide))
            self._token_logprobs = np.full(rows, top[0], dtype=np.float32)
            self._below = np.arange(wide, dtype=np.int32)
        top_ids = tokens[:, None] + self._below
        top_ids %= self._end_token
        return Logprobs(self._token_logprobs, self._ones, top_ids, self._top_logprobs)

    # --- rows --------------------------------------------------------------------------------------------------------

    def _forget(self, rows: int) -> None:
        """No row lives; room for `rows` of them."""
        self._known: Int32 = np.zeros(rows, dtype=np.int32)
        self._computed: Int32 = np.zeros(rows, dtype=np.int32)
        self._keys: NDArray[np.uint64] = np.zeros(rows, dtype=np.uint64)
        self._asked: dict[int, int] = {}  # rows that want logprobs, and how many
        self._widths: dict[int, int] = {}  # how many rows want so many
        self._to_pool: dict[int, int] = {}  # rows whose vector is to come, and what it is drawn from

    def _change_rows(self, step: Step) -> None:
        if step.epoch > self._epoch:
            self._epoch = step.epoch
            self._forget(len(self._known))
        if self._asked:
            for row in step.removed.tolist():
                self._asks(row, None)
        for row in step.removed.tolist() if self._to_pool else ():
            self._to_pool.pop(row, None)
        for new in step.added:
            self._add(new)
        self._most_logprobs = max(self._widths, default=-1)

    def _add(self, new: NewRow) -> None:
        row, sampling = new.row, new.sampling
        if row >= len(self._known):
            more = max(row + 1, 2 * len(self._known)) - len(self._known)
            for name in ("_known", "_computed", "_keys"):
                setattr(self, name, np.pad(getattr(self, name), (0, more)))
        self._asks(row, sampling.logprobs)
        self._known[row] = len(new.tokens) // 4
        self._computed[row] = new.computed
        key = crc32(new.tokens[: 4 * new.prompt_tokens]) if sampling.temperature == 0 else new.seed
        self._keys[row] = (key * int(_ODD)) & 0xFFFFFFFFFFFFFFFF
        if new.pooling is not None:
            self._to_pool[row] = crc32(new.tokens)
        for is_asked, refusal in (
            (sampling.prompt_logprobs is not None, _NO_PROMPT_LOGPROBS),
            (new.constraint is not None, _NO_GRAMMAR),
        ):
            if is_asked and self._known[row] != _NEVER:
                self._known[row] = _NEVER
                self._failed.append((row, refusal))

    def _asks(self, row: int, logprobs: int | None) -> None:
        """What the row wants from now on."""
        before = self._asked.pop(row, None)
        if before is not None:
            self._widths[before] -= 1
            if not self._widths[before]:
                del self._widths[before]
        if logprobs is not None:
            self._asked[row] = logprobs
            self._widths[logprobs] = self._widths.get(logprobs, 0) + 1

    # --- time --------------------------------------------------------------------------------------------------------

    def _send_later(self, latency: StepLatency, step: Step, sampled: Int32) -> None:
        """Answer when a device that does one step after another would have finished this one."""
        now = self._clock.now()
        rows = len(step.rows)
        begin, step_s = max(now, self._free_at), 0.0  # a step without rows only moves blocks
        if rows:
            tokens = int(step.counts.sum())
            pairs = 0 if tokens == rows else chunk_pairs(self._computed[step.rows], step.counts)
            step_s = latency.step_s(tokens=tokens, context=self._context, rows=rows, pairs=pairs)
            # While the device was busy, the control plane's work was hidden behind it.
            begin = max(now + latency.delay_s(self._last_rows), self._free_at)
            self._last_rows = rows
        self._free_at = begin + step_s
        step_us = self._counts["step_us"] = round(1e6 * step_s)
        self._counts["busy_us"] += step_us
        self._due.append((self._free_at, self._done(step, sampled, step_us)))
        if self._timer is None:
            self._timer = self._clock.call_later(self._free_at - now, self._answer)

    def _answer(self) -> None:
        _, done = self._due.popleft()
        # One timer at a time: a loop may run equal ones in any order.
        self._timer = None
        if self._due:
            self._timer = self._clock.call_later(max(0.0, self._due[0][0] - self._clock.now()), self._answer)
        self._scheduler.send(done)

    def _leave(self) -> None:
        self._is_closed = True
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
