"""A process of clients that read streams and do nothing else: `python -m asyncpage.cli.control_plane.sse_clients`.

`sse.py` starts it with a port, a number of clients and of tokens; it posts one completion a client and writes lines to
standard output: the seconds since it began and the tokens that have come so far, then "done" and how many answers were
whole.

INVARIANT: tokens are counted in the bytes that came: each is a word behind a space, and an event has one space more.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast

from asyncpage.cli.loop import new_runner

TELL_S = 0.1


class _Client(asyncio.Protocol):
    """One connection with one request."""

    def __init__(self, all_clients: _Clients, request: bytes) -> None:
        self._clients = all_clients
        self._request = request
        self._end = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        clients = self._clients
        clients.spaces += data.count(b" ")
        clients.newlines += data.count(b"\n") - data.count(b"\r")  # two behind an event; those of the framing have a \r
        self._end = (self._end + data[-64:])[-64:]
        if self._end.endswith(b"\r\n0\r\n\r\n"):
            clients.whole += b"data: [DONE]\n\n" in self._end
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._clients.left -= 1
        if not self._clients.left:
            self._clients.over.set()


class _Clients:
    """What all of them have received, headers included: these are the same in every answer and are taken off."""

    def __init__(self, count: int) -> None:
        self.spaces = 0
        self.newlines = 0
        self.whole = 0
        self.left = count
        self.over = asyncio.Event()

    @property
    def words(self) -> int:
        return self.spaces - self.newlines // 2


async def _read(port: int, count: int, tokens: int) -> None:
    body = {"model": "none", "prompt": [300] * 16, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    loop = asyncio.get_running_loop()
    clients = _Clients(count)
    began = time.perf_counter()
    for _ in range(count):
        await loop.create_connection(lambda: _Client(clients, head.encode() + data), "127.0.0.1", port)
    while not clients.over.is_set():
        await asyncio.sleep(TELL_S)
        print(f"{time.perf_counter() - began:.6f} {clients.words}", flush=True)
    print(f"done {clients.whole}", flush=True)


if __name__ == "__main__":
    with new_runner() as runner:
        runner.run(_read(*map(int, sys.argv[1:4])))
