"""One server-sent-event stream on its socket: written from the engine's own call, without a queue or a task switch.

The chunk writer sends events; this frames them (chunked transfer coding), watches how much the client leaves
unread, and keeps a silent connection alive.

INVARIANT: at most `max_buffered_bytes`, beside what was allowed for once, wait for a client that does not read; then
its connection is cut.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping

from aiohttp import HttpVersion11, web

HIGH_WATER_BYTES = 64 * 1024
"""Unsent bytes at which a socket counts as full: asyncio's own mark for pausing a writer."""

HEADERS: Mapping[str, str] = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would otherwise gather the stream
}
# Bytes that the kernel may hold for a stream beside those under way. By itself it takes up to 4 MB for a client that
# reads nothing: thousands of tokens computed for nobody, and memory that no count of ours sees.
UNSENT_BYTES = HIGH_WATER_BYTES
_UNSENT_OPTION: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)  # Linux and macOS have it

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


class EventStream:
    """Opened once the engine has accepted the call; before that nothing can be sent.

    `keep_alive` is sent when nothing else was for a while. `on_lost` is called once, with "client_gone" or
    "slow_reader", when nothing sent can arrive any more.
    """

    def __init__(
        self,
        request: web.Request,
        *,
        max_buffered_bytes: int,
        keep_alive_s: float,
        now: Callable[[], float],
        on_lost: Callable[[str], None],
        keep_alive: bytes = KEEP_ALIVE,
    ) -> None:
        self._request = request
        self._max_buffered_bytes = max_buffered_bytes
        self._keep_alive_s = keep_alive_s
        self._keep_alive_event = keep_alive
        self._now = now
        self._on_lost = on_lost
        self._response = web.StreamResponse(headers=HEADERS)
        # aiohttp writes the headers and the end; the chunks between go straight to the transport that it offers, in
        # the transfer coding that the headers announce. Its own write is a coroutine, which costs a task switch.
        self._is_chunked = request.version >= HttpVersion11
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_write = 0.0

    @property
    def is_full(self) -> bool:
        """Nothing should be sent now: not open yet, or the client is behind."""
        return self._transport is None or self._transport.get_write_buffer_size() > HIGH_WATER_BYTES

    async def open(self) -> None:
        """Send status and headers. Errors: `ConnectionError` when the client has left."""
        if self._is_chunked:
            self._response.enable_chunked_encoding()
        await self._response.prepare(self._request)
        transport = self._request.transport
        if transport is None:
            raise ConnectionResetError("the client has left")
        _bound_kernel(transport)
        self._transport = transport
        self._last_write = self._now()
        self._timer = asyncio.get_running_loop().call_later(self._keep_alive_s, self._keep_alive)

    def send(self, events: bytes) -> None:
        """Write complete events, at once. Only when open."""
        transport = self._transport
        if transport is None:
            return
        if transport.is_closing():
            self._lose("client_gone")
            return
        self._last_write = self._now()
        transport.write(b"%x\r\n%b\r\n" % (len(events), events) if self._is_chunked else events)

    async def drain(self) -> None:
        """Wait until the client is not behind, for who can wait. Errors: `ConnectionError` when it has left."""
        await self._request.writer.drain()

    def allow(self, size: int) -> None:
        """Do not blame the client for these bytes, which all come at once: it had no time to read them."""
        self._max_buffered_bytes += size

    def check_held(self, held_bytes: int) -> None:
        """Cut the client when what it has not read, with `held_bytes` not even sent, is too much."""
        transport = self._transport
        unread = held_bytes + (transport.get_write_buffer_size() if transport is not None else 0)
        if unread > self._max_buffered_bytes:
            if transport is not None:
                transport.abort()
            self._lose("slow_reader")

    async def close(self, events: bytes) -> web.StreamResponse:
        """Send the last events and the end of the body; waits until the client has room for them."""
        self.stop()
        await self._response.write_eof(events)
        return self._response

    def stop(self) -> None:
        """No more is sent from here; safe to call more than once."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _lose(self, outcome: str) -> None:
        self.stop()
        self._on_lost(outcome)

    def _keep_alive(self) -> None:
        # One timer a stream, moved on when it fires: re-arming it for every token would cost more than the token.
        silent_s = self._now() - self._last_write
        if silent_s >= self._keep_alive_s:
            if not self.is_full:
                self.send(self._keep_alive_event)
            silent_s = 0.0
        if self._transport is not None:
            self._timer = asyncio.get_running_loop().call_later(self._keep_alive_s - silent_s, self._keep_alive)


def _bound_kernel(transport: asyncio.Transport) -> None:
    """Let the kernel hold little for a client that does not read. What is on its way to one that does is no part."""
    peer = transport.get_extra_info("socket")
    if _UNSENT_OPTION is not None and peer is not None and peer.family in (socket.AF_INET, socket.AF_INET6):
        peer.setsockopt(socket.IPPROTO_TCP, _UNSENT_OPTION, UNSENT_BYTES)
