"""The consumers of a call whose answer is made of blocks: one streams it as named events, the other keeps it.

The exchange calls them; both read the same text into the same `Blocks`, and a `Wording` puts it into an API's words.

INVARIANT: what is streamed, joined, is what is kept; a stream's events are whole and in order, each sent once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from asyncpage.errors import Failure
from asyncpage.messages import Finish, LogprobEntry
from asyncpage.server.call import Call
from asyncpage.server.event_stream import KEEP_ALIVE, EventStream
from asyncpage.server.exchange import Exchange
from asyncpage.server.failure import internal_failure
from asyncpage.server.generate.blocks import Blocks, Change
from asyncpage.server.generate.call_fields import Setting
from asyncpage.server.generate.collector import LARGE
from asyncpage.server.generate.dialect import AnswerConsumer, StreamConsumer
from asyncpage.server.generate.shape import Head
from asyncpage.server.json_body import JsonBody
from asyncpage.server.json_pieces import json_pieces
from asyncpage.server.pace import Pace
from asyncpage.text.token_logprobs import TokenTable

LEVELS = 7
"""Answer, blocks, a block, its contents, one of these, its log-probabilities, their list: below it a value is small."""

log = structlog.get_logger("asyncpage.server")


class Wording(Protocol):
    """One call's answer in an API's words. All but `answer` return events, ready to be sent."""

    def begin(self, prompt_tokens: int) -> bytes:
        """The call was accepted."""
        ...

    def tell(self, change: Change) -> bytes: ...

    def end(self, blocks: Blocks, finish: Finish) -> bytes:
        """The answer has come to its end, and every block is closed."""
        ...

    def fail(self, blocks: Blocks, failure: Failure) -> bytes:
        """The call has failed; blocks may be open."""
        ...

    def answer(self, blocks: Blocks, finish: Finish) -> dict[str, Any]:
        """The whole answer."""
        ...


@dataclass(frozen=True, slots=True)
class ReplyDialect:
    """Answers are one choice, made of blocks, streamed as named events."""

    id_prefix: str
    read: Callable[[JsonBody, Setting], Call]
    make_wording: Callable[[Call, Head, TokenTable], Wording]
    keep_alive: bytes = KEEP_ALIVE

    def writer(
        self, stream: EventStream, exchange: Exchange, head: Head, table: TokenTable, pace: Pace
    ) -> StreamConsumer:
        return ReplyWriter(stream, exchange, self.make_wording(exchange.call, head, table), pace)

    def collector(self, call: Call, head: Head, table: TokenTable) -> AnswerConsumer:
        return ReplyCollector(call, self.make_wording(call, head, table))


class ReplyWriter:
    """The consumer of a streamed call. Text that must wait is read at once and told later, in fewer events."""

    def __init__(self, stream: EventStream, exchange: Exchange, wording: Wording, pace: Pace) -> None:
        self._stream = stream
        self._exchange = exchange
        self._wording = wording
        self._pace = pace
        self._blocks = Blocks(exchange.call.new_reader(), keeps_entries=False)
        self._finish: Finish | None = None
        self._has_begun = False
        self._held_bytes = 0

    # --- what the engine says ----------------------------------------------------------------------------------------

    def text(self, index: int, text: str, token_ids: Sequence[int], logprobs: Sequence[LogprobEntry] | None) -> None:
        self._blocks.read(text, len(token_ids), logprobs or ())
        if not text:
            return
        if self._held_bytes or self._pace.is_lagging or self._stream.is_full:
            self._held_bytes += len(text)
            self._pace.hold(self)
            self._stream.check_held(self._held_bytes)
        else:
            self._write()

    def prompt_logprobs(self, index: int, entries: Sequence[LogprobEntry]) -> None:
        """No API of this kind shows them."""

    def finished(self, index: int, finish: Finish) -> None:
        self._blocks.end(is_cut=finish.reason == "length")
        self._finish = finish

    # --- what the route and the pace say -----------------------------------------------------------------------------

    def flush(self) -> None:
        """Send what is held; while the socket is full, try again soon."""
        if self._exchange.is_over or (self._has_begun and not self._held_bytes):
            return
        if self._stream.is_full:
            self._pace.hold(self)
            return
        try:
            self._write()
        except Exception:  # other streams are flushed in the same turn
            log.exception("stream.failed")
            self._exchange.fail(internal_failure())

    def last_events(self) -> bytes:
        failure = self._exchange.failure
        if failure is not None:
            return self._take() + self._wording.fail(self._blocks, failure)
        assert self._finish is not None
        return self._take() + self._wording.end(self._blocks, self._finish)

    def _write(self) -> None:
        events = self._take()
        if events:
            self._pace.wrote()
            self._stream.send(events)

    def _take(self) -> bytes:
        self._held_bytes = 0
        events: list[bytes] = []
        if not self._has_begun:
            self._has_begun = True
            events.append(self._wording.begin(self._exchange.prompt_tokens[0]))
        for change in self._blocks.take():
            told = self._wording.tell(change)
            if change.kind == "closed":  # some APIs tell the whole block again, for which no client had time to read
                self._stream.allow(len(told))
            events.append(told)
        return b"".join(events)


class ReplyCollector:
    """The consumer of a call whose answer is sent whole."""

    def __init__(self, call: Call, wording: Wording) -> None:
        self._wording = wording
        self._blocks = Blocks(call.new_reader(), keeps_entries=True)
        self._finish: Finish | None = None

    def text(self, index: int, text: str, token_ids: Sequence[int], logprobs: Sequence[LogprobEntry] | None) -> None:
        self._blocks.read(text, len(token_ids), logprobs or ())

    def prompt_logprobs(self, index: int, entries: Sequence[LogprobEntry]) -> None:
        """No API of this kind shows them."""

    def finished(self, index: int, finish: Finish) -> None:
        self._blocks.end(is_cut=finish.reason == "length")
        self._finish = finish

    async def answer(self) -> str:
        """The whole body. A large one is written while the loop goes on."""
        self._blocks.take()
        if sum(len(block.entries) for block in self._blocks.blocks) < LARGE:
            return json.dumps(self._body())
        return await asyncio.to_thread(lambda: "".join(json_pieces(self._body(), LEVELS)))

    def _body(self) -> dict[str, Any]:
        assert self._finish is not None
        return self._wording.answer(self._blocks, self._finish)


def named_event(kind: str, body: dict[str, Any]) -> bytes:
    """A server-sent event. ASCII escapes: no line separator or half a character can be in the bytes."""
    return f"event: {kind}\ndata: {json.dumps(body, separators=(',', ':'))}\n\n".encode("ascii")
