"""An HTTP client that keeps what it hears: whole answers, streams, and connections that are left in many ways.

`suite` gives one to each case.

INVARIANT: an answer that is no answer of this API (a 5xx nobody expects, an error without the OpenAI shape) is kept in
`complaints`, which the invariants read at the end.
"""

from __future__ import annotations

import asyncio
import io
import re
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.cases.answer import Answer, EventReader
from tests.cases.macros import Names, expand, to_json

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
ANTHROPIC = "/v1/messages"  # errors under this path have its API's own form
ERROR_FIELDS = {"message", "type"}
PATIENCE_S = 120.0
SILENCE_S = 1.0  # what a connection still has to say after an answer comes at once


@dataclass(slots=True)
class RawReply:
    """What came back on a raw connection. `closed` within the time; `statuses` of every response on it."""

    data: bytes
    closed: bool
    seconds: float

    @property
    def statuses(self) -> list[int]:
        return [int(found) for found in re.findall(rb"HTTP/\d\.\d (\d{3}) ", self.data)]


class Client:
    """Requests to one server, and what was wrong with its answers."""

    def __init__(self, url: str, port: int, names: Names, headers: Mapping[str, str] | None = None) -> None:
        self.url = url
        self.port = port
        self.names = names
        self.complaints: list[str] = []
        self.allowed: set[int] = set()
        self._headers = dict(headers or {})
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        self._session = aiohttp.ClientSession(self.url, connector=connector, timeout=timeout)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
        return await self.send(method, path, None, headers)

    async def post(self, path: str, fields: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """`fields` may hold macros."""
        return await self.send("POST", path, to_json(expand(fields, self.names)), headers)

    async def complete(self, **fields: Any) -> Answer:
        return await self.post(COMPLETIONS, {"model": "$M", **fields})

    async def chat(self, content: str, **fields: Any) -> Answer:
        return await self.post(CHAT, {"model": "$M", "messages": [{"role": "user", "content": content}], **fields})

    async def send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request and the whole of its answer."""
        assert self._session is not None
        sent = {**self._headers, **({} if body is None else {"Content-Type": "application/json"}), **(headers or {})}
        started = time.monotonic()
        data = io.BytesIO(body) if body is not None and len(body) > 1 << 20 else body  # as aiohttp wants it
        async with self._session.request(method, path, data=data, headers=sent) as response:
            is_stream = response.content_type == "text/event-stream"
            answer = Answer(path, response.status, response.headers, b"", 0.0, is_stream)
            if is_stream:
                reader = EventReader()
                async for chunk in response.content.iter_any():
                    answer.arrivals.append(time.monotonic())
                    reader.feed(chunk)
                reader.fill(answer)
                answer.first_s = answer.arrivals[0] - started if answer.arrivals else None
            else:
                answer.body = await response.read()
        answer.seconds = time.monotonic() - started
        self._judge(answer, method)
        return answer

    async def gauges(self) -> dict[str, float]:
        """Every series of /metrics without labels."""
        answer = await self.get("/metrics")
        assert answer.status == 200, answer.body
        pairs = (line.rsplit(" ", 1) for line in answer.body.decode().splitlines() if not line.startswith("#"))
        return {name.removeprefix("asyncpage_"): float(value) for name, value in pairs if "{" not in name}

    async def leave(self, path: str, fields: Any, after_s: float, *, how: str = "fin") -> bytes:
        """Send a request and go away: "fin" closes, "rst" resets, "upload" goes in the middle of the body."""
        body = to_json(expand(fields, self.names))
        head = self._head(path, len(body))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(head + (body[: len(body) // 2] if how == "upload" else body))
            heard = bytearray()
            try:
                async with asyncio.timeout(after_s):
                    while chunk := await reader.read(65536):
                        heard += chunk
            except TimeoutError:
                pass
            if how == "rst":
                peer: socket.socket = writer.get_extra_info("socket")
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            writer.close()
        return bytes(heard)

    async def trickle(self, path: str, fields: Any, *, bytes_at_once: int = 512, pause_s: float = 0.01) -> bytes:
        """Send a request and read its answer slowly, to its end; with its headers and chunk sizes, as it came."""
        body = to_json(expand(fields, self.names))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1024)
        try:
            head = self._head(path, len(body)).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            writer.write(head + body)
            heard = bytearray()
            while chunk := await reader.read(bytes_at_once):
                heard += chunk
                await asyncio.sleep(pause_s)
        finally:
            writer.close()
        return bytes(heard)

    async def raw(self, data: bytes, limit_s: float = 5.0) -> RawReply:
        """Bytes on a connection of their own; what comes back until it is closed, then silent, or time is up."""
        started = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        heard = bytearray()
        closed = False
        try:
            writer.write(data)
            async with asyncio.timeout(limit_s) as limit:
                while chunk := await reader.read(65536):
                    heard += chunk
                    limit.reschedule(asyncio.get_running_loop().time() + SILENCE_S)
                closed = True
        except TimeoutError:
            pass
        except ConnectionError:
            closed = True
        finally:
            writer.close()
        return RawReply(bytes(heard), closed, time.monotonic() - started)

    def _head(self, path: str, length: int) -> bytes:
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        lines += [f"Content-Length: {length}", *(f"{name}: {value}" for name, value in self._headers.items())]
        return "\r\n".join([*lines, "", ""]).encode()

    def _judge(self, answer: Answer, method: str) -> None:
        if answer.status >= 500 and answer.status not in self.allowed:
            self.complaints.append(f"{answer.path} answered {answer.status}: {answer.body[:300]!r}")
        if answer.status < 400 or method == "HEAD":
            return
        fields = ERROR_FIELDS | ({"param", "code"} if not answer.path.startswith(ANTHROPIC) else set())
        try:
            error = answer.json["error"]
            wrong = set(error) != fields or not error["message"] or not error["type"]
        except (ValueError, KeyError, TypeError):
            wrong = True
        if wrong:
            self.complaints.append(f"{answer.path} answered {answer.status} in another shape: {answer.body[:300]!r}")
