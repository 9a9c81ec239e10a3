"""Malformed HTTP: refused, never answered twice, and no traceback for it."""

import logging
import re

import pytest

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"

MALFORMED = [
    b"GARBAGE\r\n\r\n",
    b"GET /health HTTP/3.7\r\nHost: localhost\r\n\r\n",
    b"GET /hea lth HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
    POST + b"Content-Length: +5\r\n\r\nhello",
    POST + b"Content-Length: 5\r\nContent-Length: 1\r\n\r\nhello",
    POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\nabc",
]


@pytest.mark.parametrize("request_bytes", MALFORMED, ids=range(len(MALFORMED)))
async def test_malformed_http_is_refused_once_and_quietly(site, request_bytes: bytes, caplog, capsys) -> None:
    with caplog.at_level(logging.WARNING):
        answer = await site.raw(request_bytes)
    assert [status for _, status in re.findall(rb"HTTP/1\.([01]) (\d{3})", answer)] == [b"400"]
    assert not caplog.records
    assert "Traceback" not in "".join(capsys.readouterr())
    assert (await site.get("/health")).status == 200
