"""One HTTP call's requests in the engine: submitted together, accepted or refused together, ended together.

The generate route makes it and awaits it; the engine calls it as the `Sink` of every prompt; it passes what the
engine says to a consumer (a stream or a collector) by choice index and measures on the way.

INVARIANT: when `close` has run, no request of this call is left in the engine, whatever happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from asyncpage.errors import Failure, RequestError, request_error
from asyncpage.messages import Finish, LogprobEntry, RequestId, RequestOptions
from asyncpage.server.call import Call
from asyncpage.server.engine_port import Engine
from asyncpage.server.failure import internal_failure
from asyncpage.server.metrics import Metrics

MAX_LOGPROBS = 2**20
"""Numbers that are kept for one call until its answer is sent: tokens x (alternatives + 1), of the prompts of every
choice and, where the answer is not streamed, of the answers. Each takes 50 to 150 bytes, and a request of a few bytes
can ask for any number of them."""


class Consumer(Protocol):
    """Takes what the engine says about each choice of a call. Calls are synchronous."""

    def text(
        self, index: int, text: str, token_ids: Sequence[int], logprobs: Sequence[LogprobEntry] | None
    ) -> None: ...

    def prompt_logprobs(self, index: int, entries: Sequence[LogprobEntry]) -> None: ...

    def finished(self, index: int, finish: Finish) -> None: ...


class Exchange:
    """The requests of one call.

    `prompt_tokens`: [P] of each prompt, known once it was accepted. `finishes`: [P * n] by choice index, of
    those that came to a good end. `failure`: why the whole call failed; the first reason stays.
    """

    def __init__(self, engine: Engine, call: Call, options: RequestOptions, metrics: Metrics) -> None:
        self.call = call
        self.prompt_tokens = [0] * len(call.prompts)
        self.finishes: list[Finish | None] = [None] * call.choices
        self.failure: Failure | None = None
        self.first_token_s: float | None = None
        self._consumer: Consumer | None = None
        self._engine = engine
        self._options = options
        self._metrics = metrics
        self._now = engine.now
        self._started = engine.now()
        self._last_text = [0.0] * call.choices
        self._logprobs = 0  # numbers that wait for the answer to be sent
        self._indexes: dict[RequestId, int] = {}  # requests that have not ended
        self._waiting: set[RequestId] = set()  # of these, the ones neither accepted nor refused
        self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """Failed or closed: nothing more will come, and nothing more should be sent of its text."""
        return self._is_closed or self.failure is not None

    async def admit(self, consumer: Consumer) -> None:
        """Submit every prompt and wait until the engine has accepted every choice.

        Errors: `RequestError` when it refused one of them, or when the prompts are too long for the logprobs asked of
        them; all are then cancelled.
        """
        self._consumer = consumer
        n = self.call.sampling.n
        try:
            for number, prompt in enumerate(self.call.prompts):
                first = self._engine.submit(prompt, self.call.sampling, self._options, self)
                for choice in range(n):
                    self._indexes[RequestId(first + choice)] = number * n + choice
        except RequestError as error:
            self.fail(error.failure)
        self._waiting = set(self._indexes)
        await self._until(lambda: not self._waiting)

    async def done(self) -> None:
        """Wait until every choice has finished. Errors: `RequestError` when the call failed."""
        await self._until(lambda: not self._indexes)

    def fail(self, failure: Failure) -> None:
        """The whole call ends with this failure, unless it already has an end."""
        if self.failure is None and not self._is_closed and None in self.finishes:
            self.failure = failure
            self._leave()

    def close(self) -> None:
        """Cancel whatever still runs; safe to call at any time, more than once."""
        self._is_closed = True
        self._leave()
        # Consumers know their exchange: in such a circle, what one holds for a client that did not read would stay
        # until the garbage collector's next look at everything, hundreds of calls later.
        self._consumer = None

    def accepted(self, request: RequestId, prompt_tokens: int) -> None:
        index = self._indexes.get(request)
        if index is None:
            return
        self.prompt_tokens[index // self.call.sampling.n] = prompt_tokens
        self._waiting.discard(request)
        if not self._waiting:
            self._count_prompt_logprobs()
            self._wake()

    def refused(self, request: RequestId, failure: Failure) -> None:
        index = self._indexes.pop(request, None)
        if index is not None:
            self.fail(self._about_prompt(failure, index // self.call.sampling.n))

    def text(
        self, request: RequestId, text: str, token_ids: Sequence[int], logprobs: Sequence[LogprobEntry] | None
    ) -> None:
        index = self._indexes.get(request)
        if index is None or self._consumer is None:
            return
        if token_ids:
            now = self._now()
            last = self._last_text[index]
            self._last_text[index] = now
            if last:
                self._metrics.token_gap.observe(now - last)
            else:
                self._metrics.first_token.observe(now - self._started)
                if self.first_token_s is None:
                    self.first_token_s = now - self._started
        if logprobs and not self.call.output.stream:
            self._count_logprobs(
                len(logprobs),
                self.call.sampling.logprobs or 0,
                "the logprobs of the answer became too many",
                "logprobs",
            )
            if self.failure is not None:
                return
        try:
            self._consumer.text(index, text, token_ids, logprobs)
        except Exception:  # a parser may be a stranger's, and what it has not read would be lost
            self.fail(internal_failure())
            raise

    def prompt_logprobs(self, request: RequestId, entries: Sequence[LogprobEntry]) -> None:
        index = self._indexes.get(request)
        if index is not None and self._consumer is not None:
            self._consumer.prompt_logprobs(index, entries)

    def finished(self, finish: Finish) -> None:
        index = self._indexes.pop(finish.request, None)
        if index is None or self._consumer is None:
            return
        self._waiting.discard(finish.request)
        if finish.reason in ("stop", "length"):
            try:
                self._consumer.finished(index, finish)
            except Exception:  # no other word will come for this choice, so the call is told here
                self.fail(internal_failure())
                raise
            self.finishes[index] = finish
            if not self._indexes:
                self._wake()
        else:
            text = "the request was ended by the server before it was complete"
            self.fail(finish.failure or Failure(500, text, code=finish.reason))

    def _count_prompt_logprobs(self) -> None:
        """How long a prompt is, and so how much it adds to an answer, is known once it was accepted."""
        most = self.call.sampling.prompt_logprobs
        if most is not None:
            param = "logprobs" if self.call.output.prompt_logprobs is None else "prompt_logprobs"
            self._count_logprobs(
                sum(self.prompt_tokens) * self.call.sampling.n,
                most,
                f"the logprobs of {sum(self.prompt_tokens)} prompt tokens for n {self.call.sampling.n} are too many",
                param,
            )

    def _count_logprobs(self, tokens: int, alternatives: int, what: str, param: str) -> None:
        """Keep account of numbers that wait for the answer to be sent; the call fails when they are too many."""
        self._logprobs += tokens * (alternatives + 1)
        if self._logprobs > MAX_LOGPROBS:
            text = (
                f"{what}: with {alternatives} alternatives each, more than the {MAX_LOGPROBS} numbers that one request "
                "may ask for; send fewer prompts, choices or alternatives, set max_tokens, or stream the answer"
            )
            self.fail(Failure(400, text, param=param))

    def _about_prompt(self, failure: Failure, number: int) -> Failure:
        """A prompt's refusal as the client knows that prompt: by its field, and its place where there are several."""
        if failure.param != "prompt":
            return failure
        field = self.call.prompt_field
        place = f"{field}.{number}: " if len(self.call.prompts) > 1 else ""
        return replace(failure, message=place + failure.message, param=field)

    def _leave(self) -> None:
        requests, self._indexes, self._waiting = tuple(self._indexes), {}, set()
        for request in requests:
            self._engine.cancel(request)
        self._wake()

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        while self.failure is None and not is_reached():
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.failure is not None:
            raise request_error(self.failure)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
