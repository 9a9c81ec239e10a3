"""Bytes that are no request, or two things at once: one answer in the error shape, and the connection ends."""

from __future__ import annotations

import json
import re

import pytest
from structlog.testing import capture_logs

BODY = b'{"prompt": "marker-of-a-secret", "max_tokens": 1}'
POST = b"POST /v1/completions HTTP/1.1"
LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"


def request(*headers: bytes, line: bytes = POST, body: bytes = BODY) -> bytes:
    return b"\r\n".join((line, b"Host: localhost", *headers)) + b"\r\n\r\n" + body


UNREADABLE = {
    "a length and chunks": request(LENGTH, CHUNKED),
    "two lengths": request(LENGTH, b"Content-Length: 1"),
    "a length with a sign": request(b"Content-Length: +5"),
    "a length with an underscore": request(b"Content-Length: 5_0"),
    "a negative length": request(b"Content-Length: -1"),
    "a hexadecimal length": request(b"Content-Length: 0x5"),
    "no length in the header": request(b"Content-Length: "),
    "chunks that are not last": request(b"Transfer-Encoding: chunked, identity"),
    "an unknown coding": request(b"Transfer-Encoding: xchunked"),
    "two codings": request(b"Transfer-Encoding:  chunked ", b"Transfer-Encoding: identity"),
    "a space before the colon": request(b"Content-Length : 5"),
    "a zero byte in a header": request(b"X: a\0b"),
    "a folded header": request(b"X: a\n b"),
    "a bare carriage return": request(b"X: a\rb"),
    "a header without a name": request(b": marker-of-a-secret"),
    "a line that is no header": request(b"marker-of-a-secret"),
    "a chunk size with a sign": request(CHUNKED, body=b"+3\r\nabc\r\n0\r\n\r\n"),
    "a chunk size with a prefix": request(CHUNKED, body=b"0x3\r\nabc\r\n0\r\n\r\n"),
    "a chunk size with an underscore": request(CHUNKED, body=b"1_0\r\n"),
    "a chunk of 2^64 bytes": request(CHUNKED, body=b"10000000000000000\r\nabc"),
    "chunks ended by bare line feeds": request(CHUNKED, body=b"3\nabc\n0\n\n"),
    "an unknown version": request(line=b"GET /health HTTP/3.7", body=b""),
    "no version": request(line=b"GET /health", body=b""),
    "a method in small letters": request(line=b"get /health HTTP/1.1", body=b""),
    "a method that is not ASCII": request(line="GËT /health HTTP/1.1".encode(), body=b""),
    "a space in the path": request(line=b"GET /marker-of-a-secret x HTTP/1.1", body=b""),
    "a zero byte in the path": request(line=b"GET /marker-of-a-secret\0 HTTP/1.1", body=b""),
    "an address that is none": request(line=b"GET http://[marker-of-a-secret HTTP/1.1", body=b""),
    "another protocol's greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 marker-of-a-secret\r\n\r\n",
    "a long header": request(b"X: " + b"y" * 9000, body=b""),
    "many headers": request(*[b"X: y"] * 200, body=b""),
    "a long path": request(line=b"GET /" + b"a" * 9000 + b" HTTP/1.1", body=b""),
}


@pytest.mark.parametrize("raw", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_what_cannot_be_read_is_refused_once_and_without_a_word_of_it(site, raw: bytes) -> None:
    with capture_logs() as lines:
        answer = await site.raw(raw)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert re.match(rb"HTTP/\d\.\d 400 ", head)
    assert re.search(rb"X-Request-Id: req-[0-9a-f]{32}", head)
    assert b"Server: asyncpage" in head
    error = json.loads(body)["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "bad_http", None)
    assert b"marker" not in answer
    assert "marker" not in str(lines)
    assert not [line for line in lines if line["log_level"] in ("error", "warning")]
    assert not site.engine.submitted


async def test_an_expectation_that_cannot_be_met_is_refused_in_the_error_shape(site) -> None:
    answer = await site.raw(request(b"Expect: 200-maybe", LENGTH, b"Connection: close"))
    assert answer.startswith(b"HTTP/1.1 417 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "expectation_failed"


async def test_a_body_that_waits_for_leave_gets_it(site) -> None:
    answer = await site.raw(request(b"Expect: 100-continue", LENGTH, b"Connection: close"))
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"100", b"200"]


async def test_what_follows_an_upgrade_is_not_read_as_a_second_request(site) -> None:
    answer = await site.raw(request(b"Upgrade: websocket", b"Connection: Upgrade"))
    assert re.findall(rb"HTTP/1\.\d (\d+)", answer) == [b"400"]


async def test_a_client_that_does_not_wait_for_its_first_answer_gets_both(site) -> None:
    whole = request(LENGTH)
    answer = await site.raw(whole + request(LENGTH, b"Connection: close"))
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"200"]
