"""A dialect: how one API asks for a generation and words its answer.

A route hands one to `generate`, which runs every call in the same way. `ChunkDialect` serves the two older routes of
the OpenAI API, `ReplyDialect` those whose answers are made of named blocks.

INVARIANT: a dialect keeps nothing; what a call's answer depends on is in the consumers that it makes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from asyncpage.server.call import Call, Output
from asyncpage.server.event_stream import KEEP_ALIVE, EventStream
from asyncpage.server.exchange import Consumer, Exchange
from asyncpage.server.generate.call_fields import Setting
from asyncpage.server.generate.chunk_writer import ChunkWriter
from asyncpage.server.generate.collector import Collector
from asyncpage.server.generate.shape import Head, Shape
from asyncpage.server.json_body import JsonBody
from asyncpage.server.pace import Held, Pace
from asyncpage.text.token_logprobs import TokenTable


class StreamConsumer(Consumer, Held, Protocol):
    """Writes what it hears to a stream; `flush` is called once the stream is open."""

    def last_events(self) -> bytes:
        """What ends the stream, once the exchange is over."""
        ...


class AnswerConsumer(Consumer, Protocol):
    """Keeps what it hears."""

    async def answer(self) -> str:
        """The whole body, once every choice has finished."""
        ...


class Dialect(Protocol):
    """`id_prefix`: of its answers' names. `keep_alive`: the event that a silent stream sends."""

    @property
    def id_prefix(self) -> str: ...

    @property
    def keep_alive(self) -> bytes: ...

    @property
    def read(self) -> Callable[[JsonBody, Setting], Call]:
        """Its body reader. Errors: `RequestError`."""
        ...

    def writer(
        self, stream: EventStream, exchange: Exchange, head: Head, table: TokenTable, pace: Pace
    ) -> StreamConsumer: ...

    def collector(self, call: Call, head: Head, table: TokenTable) -> AnswerConsumer: ...


@dataclass(frozen=True, slots=True)
class ChunkDialect:
    """Answers are choices, streamed as chunks of a shape."""

    id_prefix: str
    read: Callable[[JsonBody, Setting], Call]
    make_shape: Callable[[Output, TokenTable], Shape]
    keep_alive: bytes = KEEP_ALIVE

    def writer(
        self, stream: EventStream, exchange: Exchange, head: Head, table: TokenTable, pace: Pace
    ) -> StreamConsumer:
        return ChunkWriter(stream, exchange, self.make_shape(exchange.call.output, table), head, pace)

    def collector(self, call: Call, head: Head, table: TokenTable) -> AnswerConsumer:
        return Collector(call, self.make_shape(call.output, table), head)
