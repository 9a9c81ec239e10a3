"""A front end's end of the line: gives out request ids, and brings every answer to the sink that waits for it.

The server and the in-process API open requests here; it sends `Tokenize`, `Encode` and `Cancel` to the tokenizer. The
scheduler sends `Accepted` and `Refused`, the tokenizer `Refused` and `Encoded`, the detokenizer `Texts`, every actor
`Pong`. The KV manager is sent `Ask` and `Follow`, and sends `Answer` and `CacheEvents`.
Sinks are called in the wake-up that brought the message: no queue and no task switch a token.

INVARIANT: a sink hears `refused` or `finished` exactly once, and nothing after it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Protocol, TypeVar

import numpy as np
import structlog

from asyncpage.actors.base import Actor
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import Failure, RequestError, UnknownMessage, request_error
from asyncpage.messages import (
    FRONTEND_SHIFT,
    Accepted,
    Answer,
    Ask,
    CacheEvents,
    Cancel,
    Encode,
    Encoded,
    Finish,
    Follow,
    Int32,
    LogprobEntry,
    Logprobs,
    Ping,
    Pong,
    Prompt,
    Question,
    Refused,
    RequestId,
    RequestOptions,
    Texts,
    Tokenize,
)
from asyncpage.pipes.cache_feed import CacheFeed
from asyncpage.pipes.mailbox import Address
from asyncpage.text.token_logprobs import entries, narrowed, prompt_entries

log = structlog.get_logger("asyncpage.frontend")

MOST_QUESTIONS = 16
"""Questions that may wait for an answer at once, whatever came of those who asked: each takes room in a mailbox."""

MOST_FOLLOWERS = 16
"""Feeds that may be open at once: each keeps what its follower has not read."""

_ONE = np.ones(1, dtype=np.int32).tobytes()
_Item = TypeVar("_Item")


class _Cut(Protocol):
    def __call__(self, items: Iterable[_Item], /) -> Iterable[Sequence[_Item]]: ...


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
        logprobs: Sequence[LogprobEntry] | None,
    ) -> None:
        """More of the answer: text that may be sent, and the tokens that are new (either may be empty).

        `logprobs`: an entry for each of those tokens, where the request asked for any.
        """
        ...

    def prompt_logprobs(self, request: RequestId, entries: Sequence[LogprobEntry]) -> None:
        """The prompt's next entries, in order, before the first generated token; the first has no logprob."""
        ...

    def finished(self, finish: Finish) -> None:
        """The one terminal outcome."""
        ...


class Frontend(Actor):
    """The open requests of one front end. Every method is called on its loop."""

    name = "frontend"

    def __init__(self, index: int, most_open: int, tokenizer: Address, actors: Mapping[str, Address]) -> None:
        self._index = index
        self._most_open = most_open
        self._tokenizer = tokenizer
        self._actors = dict(actors)
        self._sinks: dict[RequestId, Sink] = {}
        self._alternatives: dict[RequestId, int] = {}  # of each token, where log-probabilities are wanted
        self._asked_for = Counter[int]()  # how many of these want so many
        self._encodings: dict[RequestId, asyncio.Future[bytes]] = {}
        self._last_requests: tuple[RequestId, ...] = ()
        self._last_sinks: list[Sink | None] = []
        self._cancelled: set[RequestId] = set()  # of these, the ones that the tokenizer was told of
        self._next = 1
        self._pings: dict[int, _Ping] = {}
        self._asked: int | None = None  # the ping that further callers may wait for too
        self._questions: dict[int, asyncio.Future[object]] = {}
        self._feeds: dict[CacheFeed, None] = {}  # in the order of their opening
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
        first = self._new_ids(sampling.n)
        self._tokenizer.send(Tokenize(first, prompt, sampling, options))  # if this raises, nothing was opened
        for choice in range(sampling.n):
            request = RequestId(first + choice)
            self._sinks[request] = sink
            if sampling.logprobs is not None:
                self._alternatives[request] = sampling.logprobs
                self._asked_for[sampling.logprobs] += 1
        self._all_closed.clear()
        return first

    def cancel(self, request: RequestId) -> None:
        """The client has left. The request still has its outcome, `abort` unless it was over before."""
        if request in self._sinks and request not in self._cancelled:
            self._cancelled.add(request)
            self._tokenizer.send(Cancel(request))

    async def encode(self, prompt: Prompt) -> bytes:
        """The ids of a validated prompt, int32 little-endian, without running it.

        Errors: `RequestError`: 429 when too many requests are open already, or why the prompt has no ids.
        """
        request = self._new_ids(1)
        self._tokenizer.send(Encode(request, prompt))
        encoded: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._encodings[request] = encoded
        try:
            return await encoded
        finally:
            # Whoever has left is told of no more, but the place is taken until the tokenizer has answered.
            if request in self._encodings:
                self._tokenizer.send(Cancel(request))

    def fail_all(self, failure: Failure) -> None:
        """The house is falling: every open request and question ends with this failure, and every feed ends."""
        for request, sink in list(self._sinks.items()):
            self._close(request)
            self._call(request, sink.finished, Finish(request, "error", 0, 0, 0, failure=failure))
        unanswered: list[asyncio.Future[Any]] = [*self._encodings.values(), *self._questions.values()]
        self._encodings, self._questions = {}, {}
        for answered in unanswered:
            if not answered.done():
                answered.set_exception(request_error(failure))
        feeds, self._feeds = self._feeds, {}
        for feed in feeds:
            feed.close()

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

    async def ask(self, name: str, question: Question, timeout_s: float) -> object:
        """Ask the named actor; returns the value that the question says.

        Errors: `RequestError`: 429 when too many questions wait, or why the house fell. `TimeoutError` naming the actor
        when it does not answer within `timeout_s`.
        """
        if len(self._questions) >= MOST_QUESTIONS:
            text = f"{len(self._questions)} questions wait for an answer already; ask again later"
            raise RequestError(text, status=429, code="too_many_questions", retry_after_s=1.0)
        token, self._next = self._next, self._next + 1
        self._actors[name].send(Ask(token, self._index, question))
        answered = self._questions[token] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(answered, timeout_s)
        except TimeoutError:
            raise TimeoutError(f"no answer within {timeout_s:g} s from: {name}") from None

    def follow(self) -> CacheFeed:
        """What the prefix cache stores and removes from now on, until the feed is closed.

        Errors: `RequestError` 429 when too many follow.
        """
        if len(self._feeds) >= MOST_FOLLOWERS:
            text = f"{len(self._feeds)} follow the cache's events already; end one of them first"
            raise RequestError(text, status=429, code="too_many_followers", retry_after_s=5.0)
        if not self._feeds:
            self._actors["kv_manager"].send(Follow(self._index, is_on=True))
        feed = CacheFeed(self._unfollow)
        self._feeds[feed] = None
        return feed

    def receive(self, message: object) -> None:
        match message:
            case Texts():
                self._texts(message)
            case Accepted():
                if sink := self._sinks.get(message.request):
                    self._call(message.request, sink.accepted, message.request, message.prompt_tokens)
            case Encoded():
                if (encoded := self._encodings.pop(message.request, None)) and not encoded.done():
                    encoded.set_result(message.tokens)
            case Refused():
                if encoded := self._encodings.pop(message.request, None):
                    if not encoded.done():
                        encoded.set_exception(request_error(message.failure))
                elif sink := self._close(message.request):
                    self._call(message.request, sink.refused, message.request, message.failure)
            case Pong():
                self._pong(message)
            case CacheEvents():
                for feed in self._feeds:
                    feed.put(message.events)
            case Answer():
                answered = self._questions.pop(message.token, None)
                if answered is not None and not answered.done():
                    answered.set_result(message.value)
            case _:
                raise UnknownMessage(self, message)

    def stats(self) -> Mapping[str, float]:
        return {"open_requests": len(self._sinks)}

    def _new_ids(self, count: int) -> RequestId:
        """The first of so many ids. Errors: `RequestError` 429 when too many requests are open."""
        held = len(self._sinks) + len(self._encodings)
        if held + count > self._most_open:
            text = f"the front end holds {held} open requests, at most {self._most_open}; try again later"
            raise RequestError(text, status=429, code="queue_full", retry_after_s=1.0)
        first = RequestId((self._index << FRONTEND_SHIFT) + self._next)
        self._next += count
        return first

    def _texts(self, texts: Texts) -> None:
        sinks = self._sinks
        for request, part in texts.prompt_logprobs:
            if sink := sinks.get(request):
                self._call(request, sink.prompt_logprobs, request, prompt_entries(part))
        requests, ids, counts = texts.requests, texts.token_ids.tolist(), texts.counts
        cut: _Cut = zip  # into tuples of one, each made when its sink is called and mostly gone when the next one is
        if len(ids) != len(requests) or counts.tobytes() != _ONE * len(requests):
            cut = partial(_cut, counts)
        logprobs: Iterable[Sequence[LogprobEntry] | None] = repeat(None)
        if texts.logprobs is not None:
            logprobs = self._wanted(requests, cut(entries(ids, texts.logprobs)), texts.logprobs)
        # 0.2 us a token; with a look-up, a slice and a call with a guard of its own each, it was 0.6.
        for sink, request, text, new, own in zip(
            self._sinks_of(requests), requests, texts.texts, cut(ids), logprobs, strict=False
        ):
            if sink is not None:
                try:
                    sink.text(request, text, new, own)
                except Exception as error:
                    self._sink_failed(request, error)
        for finish in texts.finishes:
            if sink := self._close(finish.request):
                self._call(finish.request, sink.finished, finish)

    def _sinks_of(self, requests: tuple[RequestId, ...]) -> Sequence[Sink | None]:
        """Most steps bring the very tuple of the step before, as long as nobody comes or goes."""
        if requests is not self._last_requests:
            self._last_requests, self._last_sinks = requests, list(map(self._sinks.get, requests))
        return self._last_sinks

    def _wanted(
        self, requests: Sequence[RequestId], whole: Iterable[Sequence[LogprobEntry]], columns: Logprobs
    ) -> Iterable[Sequence[LogprobEntry] | None]:
        """For each request the entries that it asked for: they came for all, as wide as the greediest wants them."""
        width = columns.top_ids.shape[1]
        if self._asked_for[width] == len(self._sinks):  # what all want who are open, all want who speak
            return whole
        return [
            None if most is None else own if most >= width else [narrowed(entry, most) for entry in own]
            for most, own in zip(map(self._alternatives.get, requests), whole, strict=True)
        ]

    def _unfollow(self, feed: CacheFeed) -> None:
        if feed in self._feeds:
            del self._feeds[feed]
            if not self._feeds:
                self._actors["kv_manager"].send(Follow(self._index, is_on=False))

    def _close(self, request: RequestId) -> Sink | None:
        sink = self._sinks.pop(request, None)
        most = self._alternatives.pop(request, None)
        if most is not None:
            self._asked_for[most] -= 1
        self._cancelled.discard(request)
        self._last_requests, self._last_sinks = (), []
        if not self._sinks:
            self._all_closed.set()
        return sink

    def _call(self, request: RequestId, call: Callable[..., None], *arguments: object) -> None:
        """One sink's fault harms only its own request."""
        try:
            call(*arguments)
        except Exception as error:
            self._sink_failed(request, error)

    def _sink_failed(self, request: RequestId, error: Exception) -> None:
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


def _cut(counts: Int32, items: Iterable[_Item]) -> Iterable[Sequence[_Item]]:
    """`items` [sum counts] in pieces of `counts` [R]."""
    whole = list(items)
    ends = np.cumsum(counts)
    return [whole[start:end] for start, end in zip((ends - counts).tolist(), ends.tolist(), strict=True)]


class _Ping:
    """A ping that is out, and how many wait for its answers."""

    def __init__(self) -> None:
        self.answers: dict[str, Mapping[str, float]] = {}
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.callers = 0
