"""The OpenAI API's route that turns texts into vectors: embeddings.

The application's router calls it; a call runs as every other one does, and its answer is collected here.

INVARIANT: an answer has one vector for each input, in the order of the inputs, or there is no answer.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from aiohttp import web

from asyncpage.messages import Finish, LogprobEntry
from asyncpage.server.call import Call
from asyncpage.server.event_stream import KEEP_ALIVE, EventStream
from asyncpage.server.exchange import Exchange
from asyncpage.server.generate.call_fields import Setting
from asyncpage.server.generate.dialect import StreamConsumer
from asyncpage.server.generate.route import run_call
from asyncpage.server.generate.shape import Head
from asyncpage.server.json_body import JsonBody
from asyncpage.server.openai.embedding_body import read_embedding
from asyncpage.server.pace import Pace
from asyncpage.text.token_logprobs import TokenTable

LARGE_BYTES = 1 << 17
"""Of vectors, from which on an answer is written in a thread: as numbers, some 20 ms of work."""


async def embeddings(request: web.Request) -> web.StreamResponse:
    """POST /v1/embeddings"""
    return await run_call(request, _EMBEDDING)


class EmbeddingCollector:
    """The consumer of one call: keeps the vectors, which come with the ends."""

    def __init__(self, call: Call, head: Head) -> None:
        self._head = head
        self._is_base64 = call.output.encoding_format == "base64"
        self._vectors = [b""] * call.choices
        self._prompt_tokens = 0

    def text(self, index: int, text: str, token_ids: Sequence[int], logprobs: Sequence[LogprobEntry] | None) -> None:
        """A pooled prompt says nothing."""

    def prompt_logprobs(self, index: int, entries: Sequence[LogprobEntry]) -> None:
        """Nor this."""

    def finished(self, index: int, finish: Finish) -> None:
        self._vectors[index] = finish.embedding
        self._prompt_tokens += finish.prompt_tokens

    async def answer(self) -> str:
        """The whole body. A large one is written while the loop goes on."""
        if sum(map(len, self._vectors)) < LARGE_BYTES:
            return self._body()
        return await asyncio.to_thread(self._body)

    def _body(self) -> str:
        body = {
            **self._head.to_json("list"),
            "data": [
                {"object": "embedding", "index": index, "embedding": self._encoded(vector)}
                for index, vector in enumerate(self._vectors)
            ],
            "usage": {"prompt_tokens": self._prompt_tokens, "total_tokens": self._prompt_tokens},
        }
        return json.dumps(body, separators=(",", ":"))

    def _encoded(self, vector: bytes) -> str | list[Any]:
        """float32 little-endian, in base64 or as numbers."""
        if self._is_base64:
            return b64encode(vector).decode()
        numbers: list[Any] = np.frombuffer(vector, dtype="<f4").tolist()
        return numbers


class EmbeddingDialect:
    """How this route reads a call and words its answer, which is never streamed."""

    id_prefix = "embd"
    keep_alive = KEEP_ALIVE
    read: Callable[[JsonBody, Setting], Call] = staticmethod(read_embedding)

    def writer(
        self, stream: EventStream, exchange: Exchange, head: Head, table: TokenTable, pace: Pace
    ) -> StreamConsumer:
        raise AssertionError("read_embedding makes no call that is streamed")

    def collector(self, call: Call, head: Head, table: TokenTable) -> EmbeddingCollector:
        return EmbeddingCollector(call, head)


_EMBEDDING = EmbeddingDialect()
