"""A client's connection: what aiohttp itself cannot read is refused in the API's own shape.

The HTTP server listens with it. Bytes that are no HTTP request never become one that a middleware could see: aiohttp
would answer them itself, in plain text and with a piece of what the client sent.

INVARIANT: nothing that the client sent is in the answer to a request that could not be read, and its connection ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import http_exceptions, web
from aiohttp.http_parser import RawRequestMessage

from asyncpage.errors import Failure
from asyncpage.server.connection_log import ConnectionLog
from asyncpage.server.envelope import set_headers
from asyncpage.server.failure import error_response, http_failure, internal_failure
from asyncpage.server.identity import request_id

KEEP_ALIVE_S = 75.0
"""How long a connection may be idle, or take to send a head: longer than the proxies in front keep theirs."""

MAX_HEADER_BYTES = 8190
"""Of the first line, and of one header."""

MAX_HEADERS = 128
"""Three times what the chattiest client sends through two proxies."""

_MALFORMED = "its head, or the framing of its body, is malformed"
_REASONS: Mapping[type[BaseException | None], str] = {
    http_exceptions.LineTooLong: f"its first line or a header is longer than {MAX_HEADER_BYTES} bytes",
    http_exceptions.BadHttpMethod: "it does not begin with a method",
    http_exceptions.BadStatusLine: "its first line is malformed",
    http_exceptions.InvalidHeader: "a header is malformed",
    http_exceptions.InvalidURLError: "its path is malformed",
    http_exceptions.TransferEncodingError: "its chunked body is malformed",
    http_exceptions.ContentLengthError: "its body is shorter than announced",
}


class Connection(web.RequestHandler):
    """aiohttp's connection with answers of ours."""

    _is_unreadable = False

    def data_received(self, data: bytes) -> None:
        if self._is_unreadable:  # else what follows would be read as more of the same, and refused and kept once more
            return
        super().data_received(data)
        self._is_unreadable = bool(self._messages) and not isinstance(self._messages[-1][0], RawRequestMessage)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # logs, and raises where an answer has begun already
        if status == 400:
            reason = _REASONS.get(type(exc), _MALFORMED)
            failure = Failure(400, f"the request is not HTTP that this server reads: {reason}", code="bad_http")
        else:
            failure = internal_failure()
        answer = error_response(failure)
        set_headers(answer, request_id(None))
        answer.force_close()
        return answer

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        # What no middleware has seen: an expectation that cannot be met is refused before any runs.
        if isinstance(resp, web.HTTPException):
            resp = error_response(http_failure(resp, request.method, request.path))
        return await super().finish_response(request, resp, start_time)


class Runner(web.AppRunner):
    """Runs an application on such connections."""

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        # Of aiohttp's own server only what it calls for a request is kept.
        return _Listener(
            server.request_handler,
            request_factory=server.request_factory,
            handler_cancellation=True,  # the only way to hear at once that a client has left
        )


class _Listener(web.Server):
    def __call__(self) -> Connection:
        return Connection(
            self,
            loop=asyncio.get_running_loop(),
            logger=ConnectionLog(),  # type: ignore[arg-type]  # it has the methods that are called
            access_log=None,  # type: ignore[arg-type]  # how aiohttp is told to keep none
            auto_decompress=False,  # compressed bodies are refused: a small one can be a very large one
            keepalive_timeout=KEEP_ALIVE_S,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
        )
