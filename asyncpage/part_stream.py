"""The sink behind the Python API: what the engine says of a prompt's choices, as parts that an `async for` reads.

The engine's `generate` makes one a prompt and iterates over its parts; the front end calls it.

INVARIANT: what waits unread is merged choice by choice, so it is bounded by the answer's length.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from asyncpage.errors import Failure, request_error
from asyncpage.messages import Finish, LogprobEntry, RequestId
from asyncpage.outputs import Part, token_logprobs
from asyncpage.text.token_logprobs import TokenTable


class PartStream:
    """A sink that an `async for` reads. What waits unread is merged, so it is bounded by the answer's length."""

    def __init__(self, n: int, table: TokenTable) -> None:
        self.first = RequestId(0)
        self._left = n
        self._table = table
        self._pieces: deque[_Piece] = deque()
        self._failure: Failure | None = None
        self._arrived = asyncio.Event()

    async def parts(self) -> AsyncIterator[Part]:
        while True:
            while self._pieces:
                yield self._pieces.popleft().part(self._table)
            if self._failure is not None:
                raise request_error(self._failure)
            if not self._left:
                return
            self._arrived.clear()
            await self._arrived.wait()

    def accepted(self, request: RequestId, prompt_tokens: int) -> None:
        """Its parts will come."""

    def refused(self, request: RequestId, failure: Failure) -> None:
        self._failure = failure
        self._arrived.set()

    def text(
        self, request: RequestId, text: str, token_ids: Sequence[int], logprobs: Sequence[LogprobEntry] | None
    ) -> None:
        piece = self._piece(request)
        piece.texts.append(text)
        piece.token_ids += token_ids
        piece.logprobs += logprobs or ()

    def prompt_logprobs(self, request: RequestId, entries: Sequence[LogprobEntry]) -> None:
        self._piece(request).prompt_logprobs += entries

    def finished(self, finish: Finish) -> None:
        self._left -= 1
        if finish.failure is not None:
            self._failure = finish.failure
            self._arrived.set()
        else:
            self._piece(finish.request).finish = finish

    def _piece(self, request: RequestId) -> _Piece:
        """What more there is of a request is added to this."""
        self._arrived.set()
        index = request - self.first
        last = self._pieces[-1] if self._pieces else None
        if last is None or last.index != index or last.finish is not None:
            last = _Piece(index)
            self._pieces.append(last)
        return last


class _Piece:
    """A part in the making."""

    __slots__ = ("finish", "index", "logprobs", "prompt_logprobs", "texts", "token_ids")

    def __init__(self, index: int) -> None:
        self.index = index
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[LogprobEntry] = []
        self.prompt_logprobs: list[LogprobEntry] = []
        self.finish: Finish | None = None

    def part(self, table: TokenTable) -> Part:
        return Part(
            self.index,
            "".join(self.texts),
            tuple(self.token_ids),
            token_logprobs(self.logprobs, table),
            token_logprobs(self.prompt_logprobs, table),
            self.finish,
        )
