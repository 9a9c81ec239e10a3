"""Plays a trace to an engine: sends each request at its time, and the next turn of a session after its answer.

Talks to `AsyncEngine.submit` as the server does, with sinks that count into a `Tally`.

INVARIANT: at most `most_open` requests are under way, and arrivals are read no further than these allow, so memory
does not grow with the trace.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from asyncpage.clock import Clock
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.errors import Failure, RequestError
from asyncpage.messages import Finish, Int32, RequestId, RequestOptions, TokenPrompt
from asyncpage.simulation.tally import Tally
from asyncpage.simulation.trace import Arrival, Session, Trace, Turn

_UPDATE_EVERY = 256  # requests between two calls of `on_progress`


class Driver:
    """All the clients of one simulation. `most_open` None sets no bound: the engine's own limits refuse."""

    def __init__(
        self,
        engine: AsyncEngine,
        trace: Trace,
        clock: Clock,
        *,
        most_open: int | None,
        on_progress: Callable[[int, int | None], None],
    ) -> None:
        self.tally = Tally()
        self.now = clock.now
        self._engine = engine
        self._clock = clock
        self._arrivals = iter(trace.arrivals)
        self._requests = trace.requests
        self._most_open = most_open
        self._on_progress = on_progress
        self._samplings: dict[int, SamplingParams] = {}
        self._options: dict[int, RequestOptions] = {}
        self._due: deque[tuple[Session, Turn]] = deque()  # later turns that wait for a free place
        self._coming: Arrival | None = None  # the next arrival, when it has been read
        self._open = 0
        self._pausing = 0
        self._is_timed = False  # a timer will fire at the next arrival
        self._began_s = 0.0
        self._over = asyncio.get_running_loop().create_future()

    async def run(self) -> Tally:
        """Play the whole trace. Errors: what reading the trace raises."""
        self._began_s = self.now()
        self._on_progress(0, self._requests)
        self._coming = next(self._arrivals, None)
        self._go_on()
        await self._over
        self._on_progress(self.tally.done, self._requests)
        return self.tally

    def _has_room(self) -> bool:
        return self._most_open is None or self._open < self._most_open

    def _go_on(self) -> None:
        """Send what is due, as far as there is room; end when nothing is left."""
        try:
            while self._due and self._has_room():
                self._send(*self._due.popleft())
            while self._coming is not None and not self._is_timed and self._has_room():
                wait_s = self._began_s + self._coming.at_s - self.now()
                if wait_s > 0:
                    self._is_timed = True
                    self._clock.call_later(wait_s, self._arrived)
                    break
                session = self._coming.session
                self._coming = next(self._arrivals, None)
                self._send(session, next(session))
        except Exception as error:
            self._fail(error)
            return
        if self._coming is None and not (self._open or self._pausing or self._due) and not self._over.done():
            self._over.set_result(None)

    def _arrived(self) -> None:
        self._is_timed = False
        self._go_on()

    def _send(self, session: Session, turn: Turn) -> None:
        sampling = self._samplings.get(turn.output_tokens)
        if sampling is None:
            # Greedy, so that an answer depends on its prompt only, not on when it was asked for.
            sampling = SamplingParams(max_tokens=turn.output_tokens, temperature=0.0, ignore_eos=True)
            self._samplings[turn.output_tokens] = sampling
        options = self._options.get(turn.priority)
        if options is None:
            options = self._options[turn.priority] = RequestOptions(priority=turn.priority)
        request = _Request(self, session, turn, self.now())
        self._open += 1
        try:
            self._engine.submit(TokenPrompt(turn.prompt.tobytes()), sampling, options, request)
        except RequestError as error:
            self._open -= 1
            self.tally.failed_one(str(error), is_refused=True)

    def closed(self, session: Session, turn: Turn, answer: array[int] | None) -> None:
        """A request of `session` has had its outcome. `answer`: its tokens, if the session goes on with them."""
        self._open -= 1
        if self.tally.done % _UPDATE_EVERY == 0:
            self._on_progress(self.tally.done, self._requests)
        if answer is not None and not turn.is_last:
            self._follow(session, np.array(answer, dtype=np.int32))
        self._go_on()

    def _follow(self, session: Session, answer: Int32) -> None:
        """Set a timer for the next turn, if there is one."""
        try:
            turn = session.send(answer)
        except StopIteration:
            return
        except Exception as error:
            self._fail(error)
            return
        self._pausing += 1
        self._clock.call_later(turn.pause_s, partial(self._resume, session, turn))

    def _fail(self, error: Exception) -> None:
        """The trace is broken: nobody else awaits the callback in which it was read."""
        if not self._over.done():
            self._over.set_exception(error)

    def _resume(self, session: Session, turn: Turn) -> None:
        self._pausing -= 1
        self._due.append((session, turn))
        self._go_on()


class _Request:
    """The sink of one request."""

    __slots__ = ("_answer", "_driver", "_first_s", "_sent_s", "_session", "_turn")

    def __init__(self, driver: Driver, session: Session, turn: Turn, sent_s: float) -> None:
        self._driver = driver
        self._session = session
        self._turn = turn
        self._sent_s = sent_s
        self._first_s = -1.0
        self._answer: array[int] | None = None if turn.is_last else array("i")

    def accepted(self, request: RequestId, prompt_tokens: int) -> None:
        """Its tokens will come."""

    def refused(self, request: RequestId, failure: Failure) -> None:
        self._driver.tally.failed_one(failure.message, is_refused=True)
        self._driver.closed(self._session, self._turn, None)

    def text(self, request: RequestId, text: str, token_ids: Sequence[int], logprobs: object) -> None:
        if self._first_s < 0:
            self._first_s = self._driver.now()
        if self._answer is not None:
            self._answer.extend(token_ids)

    def prompt_logprobs(self, request: RequestId, entries: object) -> None:
        """Nobody asked."""

    def finished(self, finish: Finish) -> None:
        driver = self._driver
        if finish.failure is not None or self._first_s < 0:
            driver.tally.failed_one(finish.failure.message if finish.failure else f"it ended by {finish.reason}")
            driver.closed(self._session, self._turn, None)
            return
        driver.tally.completed_one(finish, self._sent_s, self._first_s, driver.now())
        driver.closed(self._session, self._turn, self._answer)
