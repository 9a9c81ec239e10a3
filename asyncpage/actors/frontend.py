"""A front end's end of the line: gives out request ids, and brings every answer to the sink that waits for it.

The server and the in-process API open requests here; it sends `Tokenize` and `Cancel` to the tokenizer. The
scheduler sends `Accepted` and `Refused`, the tokenizer `Refused`, the detokenizer `Texts`, every actor `Pong`.
Sinks are called in the wake-up that brought the message: no queue and no task switch a token.

INVARIANT: a sink hears `refused` or `finished` exactly once, and nothing after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog

from asyncpage.actors.base import Actor
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import Failure, RequestError, UnknownMessage
from asyncpage.messages import (
    FRONTEND_SHIFT,
    Accepted,
    Cancel,
    Finish,
    Ping,
    Pong,
    Prompt,
    Refused,
    RequestId,
    RequestOptions,
    Texts,
    Tokenize,
    TokenLogprob,
)
from asyncpage.pipes.mailbox import Address

log = structlog.get_logger("asyncpage.frontend")


class Sink(Protocol):
    """Hears of the requests of one prompt. Every call is synchronous, on the front end's loop, after `open` returned.

    Each of a prompt's `n` requests is first accepted or refused; only accepted ones are heard of again.
    """

    def accepted(self, request: RequestId, prompt_tokens: int) -> None:
        """The request is queued: `finished` will come."""
        ...

    def refused(self, request: RequestId, failure: Failure) -> None:
        """The request was not queued."""
        ...

    def text(
        self,
        request: RequestId,
        text: str,
        token_ids: Sequence[int],
        logprobs: tuple[TokenLogprob, ...] | None,
    ) -> None:
        """More of the answer: text that may be sent, and the tokens that are new (either may be empty)."""
        ...

    def prompt_logprobs(self, request: RequestId, entries: tuple[TokenLogprob, ...]) -> None:
        """The prompt's next entries, in order, before the first generated token; the first has no logprob."""
        ...

    def finished(self, finish: Finish) -> None:
        """The one terminal outcome."""
        ...


class Frontend(Actor):
    """The open requests of one front end. `open`, `cancel` and `ping` are called on its loop."""

    name = "frontend"

    def __init__(self, index: int, most_open: int, tokenizer: Address, actors: Mapping[str, Address]) -> None:
        self._index = index
        self._most_open = most_open
        self._tokenizer = tokenizer
        self._actors = dict(actors)
        self._sinks: dict[RequestId, Sink] = {}
        self._cancelled: set[RequestId] = set()  # of these, the ones that the tokenizer was told of
        self._next = 1
        self._pings: dict[int, _Ping] = {}
        self._asked: int | None = None  # the ping that further callers may wait for too
        self._all_closed: asyncio.Event = asyncio.Event()
        self._all_closed.set()

    def __len__(self) -> int:
        return len(self._sinks)

    def open(self, prompt: Prompt, sampling: SamplingParams, options: RequestOptions, sink: Sink) -> RequestId:
        """Send a validated prompt on its way; each of its `n` choices answers to `sink` under its own id.

        Returns the first of `n` consecutive ids. Never awaits; the sink is not called before this returns.
        Errors: `RequestError`: 429 when too many requests are open already, 400 when `n` alone is too many.
        """
        if sampling.n > self._most_open:
            text = f"n is {sampling.n}, and the front end holds at most {self._most_open} open requests"
            raise RequestError(text, param="n")
        if len(self._sinks) + sampling.n > self._most_open:
            text = f"the front end holds {len(self._sinks)} open requests, at most {self._most_open}; try again later"
            raise RequestError(text, status=429, code="queue_full", retry_after_s=1.0)
        first = RequestId((self._index << FRONTEND_SHIFT) + self._next)
        self._next += sampling.n
        self._tokenizer.send(Tokenize(first, prompt, sampling, options))  # if this raises, nothing was opened
        for choice in range(sampling.n):
            self._sinks[RequestId(first + choice)] = sink
        self._all_closed.clear()
        return first

    def cancel(self, request: RequestId) -> None:
        """The client has left. The request still has its outcome, `abort` unless it was over before."""
        if request in self._sinks and request not in self._cancelled:
            self._cancelled.add(request)
            self._tokenizer.send(Cancel(request))

    def fail_all(self, failure: Failure) -> None:
        """The house is falling: every open request ends with this failure."""
        for request, sink in list(self._sinks.items()):
            self._close(request)
            self._call(request, sink.finished, Finish(request, "error", 0, 0, 0, failure=failure))

    async def wait_closed(self) -> None:
        """Return when no request is open."""
        await self._all_closed.wait()

    async def ping(self, timeout_s: float) -> dict[str, Mapping[str, float]]:
        """Ask every actor for a sign of life; returns each one's stats by name.

        Callers that come while one is out wait for its answers too, so that no number of them fills a mailbox.
        Errors: `TimeoutError` naming the actors that did not answer within `timeout_s`.
        """
        if self._asked is None:
            self._asked = self._ask()
        token = self._asked
        ping = self._pings[token]
        ping.callers += 1
        try:
            await asyncio.wait_for(asyncio.shield(ping.answered), timeout_s)
        except TimeoutError:
            self._ask_anew_after(token)
            silent = sorted(self._actors.keys() - ping.answers.keys())
            raise TimeoutError(f"no answer within {timeout_s:g} s from: {', '.join(silent)}") from None
        finally:
            ping.callers -= 1
            if not ping.callers:
                self._ask_anew_after(token)
                del self._pings[token]
        return ping.answers

    def receive(self, message: object) -> None:
        match message:
            case Texts():
                self._texts(message)
            case Accepted():
                if sink := self._sinks.get(message.request):
                    self._call(message.request, sink.accepted, message.request, message.prompt_tokens)
            case Refused():
                if sink := self._close(message.request):
                    self._call(message.request, sink.refused, message.request, message.failure)
            case Pong():
                self._pong(message)
            case _:
                raise UnknownMessage(self, message)

    def stats(self) -> Mapping[str, float]:
        return {"open_requests": len(self._sinks)}

    def _texts(self, texts: Texts) -> None:
        for request, entries in texts.prompt_logprobs:
            if sink := self._sinks.get(request):
                self._call(request, sink.prompt_logprobs, request, entries)
        at = 0
        ids = texts.token_ids.tolist()
        for i, (request, count) in enumerate(zip(texts.requests, texts.counts.tolist(), strict=True)):
            if sink := self._sinks.get(request):
                logprobs = texts.logprobs[i] if texts.logprobs is not None else None
                self._call(request, sink.text, request, texts.texts[i], ids[at : at + count], logprobs)
            at += count
        for finish in texts.finishes:
            if sink := self._close(finish.request):
                self._call(finish.request, sink.finished, finish)

    def _close(self, request: RequestId) -> Sink | None:
        sink = self._sinks.pop(request, None)
        self._cancelled.discard(request)
        if not self._sinks:
            self._all_closed.set()
        return sink

    def _call(self, request: RequestId, call: Callable[..., None], *arguments: object) -> None:
        """One sink's fault harms only its own request."""
        try:
            call(*arguments)
        except Exception as error:
            log.error("sink.failed", request=request, exc_info=error)
            self.cancel(request)

    def _ask(self) -> int:
        token, self._next = self._next, self._next + 1
        for address in self._actors.values():
            address.send(Ping(token, self._index))
        self._pings[token] = _Ping()
        return token

    def _pong(self, pong: Pong) -> None:
        ping = self._pings.get(pong.token)
        if ping is not None:
            ping.answers[pong.actor] = pong.stats
            if ping.answers.keys() >= self._actors.keys() and not ping.answered.done():
                ping.answered.set_result(None)
                self._ask_anew_after(pong.token)

    def _ask_anew_after(self, token: int) -> None:
        """Whoever asks from now on asks anew."""
        if self._asked == token:
            self._asked = None


class _Ping:
    """A ping that is out, and how many wait for its answers."""

    def __init__(self) -> None:
        self.answers: dict[str, Mapping[str, float]] = {}
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.callers = 0
