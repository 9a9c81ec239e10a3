"""A process of clients that read streams and do nothing else: `python -m asyncpage.cli.control_plane.sse_clients`.

`sse.py` starts it with a port, a number of clients and of tokens; it posts one completion a client and writes lines to
standard output: the seconds since it began and the tokens that have come so far, now and then and at the end; then
"done" and how many answers were whole.

INVARIANT: tokens are counted in the bytes that came: each is a word behind a space, and an event has one space more.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from asyncpage.cli.loop import new_runner

TELL_S = 0.1


class Words:
    """Counts the words of one answer in its bytes, in whatever pieces they come. `is_whole`: it has come to its end."""

    def __init__(self) -> None:
        self.is_over = False
        self.is_whole = False
        self._head: bytes | None = b""  # until it has ended
        self._end = b""
        self._spaces = 0
        self._newlines = 0

    def take(self, data: bytes) -> None:
        """The next bytes from the socket."""
        if self._head is not None:
            self._head += data
            _, gap, data = self._head.partition(b"\r\n\r\n")
            if not gap:
                return
            self._head = None
        self._spaces += data.count(b" ")
        self._newlines += data.count(b"\n") - data.count(b"\r")  # two behind an event; those of the framing have a \r
        self._end = (self._end + data[-64:])[-64:]
        if self._end.endswith(b"\r\n0\r\n\r\n"):
            self.is_over = True
            self.is_whole = b"data: [DONE]\n\n" in self._end

    @property
    def count(self) -> int:
        return self._spaces - self._newlines // 2


class _Client(asyncio.Protocol):
    """One connection with one request."""

    def __init__(self, request: bytes, closed: Callable[[], None]) -> None:
        self.words = Words()
        self._request = request
        self._closed = closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.words.take(data)
        if self.words.is_over:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed()


async def _read(port: int, count: int, tokens: int) -> None:
    body = {"model": "none", "prompt": [300] * 16, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    loop = asyncio.get_running_loop()
    clients: list[_Client] = []
    open_clients = count
    all_over = asyncio.Event()

    def closed() -> None:
        nonlocal open_clients
        open_clients -= 1
        if not open_clients:
            all_over.set()

    began = time.perf_counter()
    for _ in range(count):
        clients.append(_Client(head.encode() + data, closed))
        await loop.create_connection(lambda: clients[-1], "127.0.0.1", port)
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(all_over.wait(), TELL_S)
        is_over = all_over.is_set()
        print(f"{time.perf_counter() - began:.6f} {sum(client.words.count for client in clients)}", flush=True)
        if is_over:
            break
    print(f"done {sum(client.words.is_whole for client in clients)}", flush=True)


if __name__ == "__main__":
    with new_runner() as runner:
        runner.run(_read(*map(int, sys.argv[1:4])))
