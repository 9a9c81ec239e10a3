"""The stream on its socket: headers, framing, silence, clients that do not read."""

import asyncio
import gc
import json
import socket
import weakref
from typing import Any

import pytest

from asyncpage.server.generate import dialect
from asyncpage.server.generate.chunk_writer import ChunkWriter


def request(body: dict, version: str = "1.1") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def test_headers_are_those_of_an_event_stream(site) -> None:
    async with site.session.post(site.url + "/v1/completions", json={"prompt": "a", "stream": True}) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["Cache-Control"] == "no-cache"
        assert answer.headers["X-Accel-Buffering"] == "no"
        assert "Content-Encoding" not in answer.headers
        assert answer.headers["X-Request-Id"]


async def test_headers_come_with_the_acceptance_and_tokens_in_the_step_that_made_them(site) -> None:
    site.engine.hold()
    async with site.session.post(site.url + "/v1/completions", json={"prompt": "abc", "stream": True}) as answer:
        assert answer.status == 200  # nothing has been computed yet
        for letter in "abc":
            site.engine.step()
            event = await answer.content.readuntil(b"\n\n")
            assert json.loads(event[6:])["choices"][0]["text"] == letter


async def test_one_connection_carries_one_answer_after_the_other(site) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    for prompt in ("first", "second"):
        writer.write(request({"prompt": prompt, "stream": True}))
        answer = await reader.readuntil(b"\r\n0\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in answer
        assert answer.count(b'"text":"') == len(prompt) + 1
    writer.close()


async def test_http_1_0_gets_the_bare_events_and_the_connections_end(site) -> None:
    answer = await site.raw(request({"prompt": "ab", "stream": True}, "1.0"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert body.endswith(b"data: [DONE]\n\n")
    assert body.startswith(b"data: {")


async def test_a_silent_stream_is_kept_alive_by_comments(serve) -> None:
    site = await serve(keep_alive_s=0.01)
    site.engine.hold()
    async with site.session.post(site.url + "/v1/completions", json={"prompt": "a", "stream": True}) as answer:
        assert await answer.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        assert await answer.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        site.engine.release()
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")


async def slow_client(site, body: dict) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client with small buffers that has read no more than the headers."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", site.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    writer.write(request(body))
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()
    return reader, writer


@pytest.mark.parametrize(("logprobs", "most"), [(None, 250_000), (2, 2_000)])
async def test_a_client_that_does_not_read_is_cut_and_harms_nobody_else(serve, logprobs: int | None, most: int) -> None:
    site = await serve(max_buffered_bytes=200_000)
    site.engine.max_model_len = 10**8
    asked = {"prompt": "z" * 100_000, "max_tokens": 2 * 10**6, "logprobs": logprobs, "stream": True}
    site.engine.hold()
    _, writer = await slow_client(site, asked)
    (run,) = site.engine.runs.values()
    run.output = [122] * asked["max_tokens"]
    while run.request in site.engine.runs:
        site.engine.step()
    # Tokens until then: what the kernel took, then the bound. The kernel alone would take megabytes of them.
    assert site.engine.cancelled == [run.request]
    assert run.done < most
    site.engine.release()
    body = await site.complete(prompt="still here")
    assert body["choices"][0]["text"] == "still here"
    metrics = await (await site.session.get(site.url + "/metrics")).text()
    assert "asyncpage_slow_readers_cut_total 1.0" in metrics
    assert 'asyncpage_request_failure_total{reason="slow_reader"} 1.0' in metrics
    writer.close()


async def test_what_a_client_left_unread_goes_when_it_is_cut(serve, monkeypatch) -> None:
    living = weakref.WeakSet()

    class Watched(ChunkWriter):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            living.add(self)

    monkeypatch.setattr(dialect, "ChunkWriter", Watched)
    site = await serve(max_buffered_bytes=200_000)
    site.engine.max_model_len = 10**8
    site.engine.hold()
    gc.collect()
    gc.disable()
    try:
        for turn in range(3):
            _, writer = await slow_client(site, {"prompt": "p", "max_tokens": 10**6, "logprobs": 2, "stream": True})
            (run,) = site.engine.runs.values()
            run.output = [122] * 10**6
            while run.request in site.engine.runs:
                site.engine.step()
            assert site.engine.cancelled[turn:] == [run.request]
            assert living
            writer.close()
        async with asyncio.timeout(10.0):  # until its task has ended and the pace has let go of it
            while living:
                await site.get("/health")
    finally:
        gc.enable()


async def test_a_slow_reader_gets_everything_in_order_with_tokens_gathered(site) -> None:
    site.engine.max_model_len = 10**8
    count = 100_000
    site.engine.hold()
    reader, writer = await slow_client(site, {"prompt": "p", "max_tokens": count, "stream": True})
    (run,) = site.engine.runs.values()
    run.output = [97 + i % 26 for i in range(count)]
    while site.engine.runs:
        site.engine.step()
    assert not site.engine.cancelled
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    writer.transport.resume_reading()
    received = [await reader.read(65536)]
    while not received[-1].endswith(b"\r\n0\r\n\r\n"):
        received.append(await reader.read(65536))
    framed, body = b"".join(received), bytearray()
    at = 0
    while at < len(framed):
        end = framed.index(b"\r\n", at)
        size = int(framed[at:end], 16)
        body += framed[end + 2 : end + 2 + size]
        at = end + size + 4
    events = [json.loads(event[6:]) for event in bytes(body).split(b"\n\n")[:-2]]
    assert "".join(event["choices"][0]["text"] for event in events) == "".join(map(chr, run.output))
    assert len(events) < count // 2  # one event a token would have been `count` of them
    writer.close()


@pytest.mark.parametrize(
    "asked", [{"logprobs": 20}, {"logprobs": 20, "max_tokens": 0}, {}, {"echo": False, "return_token_ids": True}]
)
async def test_a_shown_prompt_longer_than_the_bound_is_not_held_against_its_reader(serve, asked: dict) -> None:
    site = await serve(max_buffered_bytes=10_000)
    site.engine.max_model_len = 10**8
    site.engine.hold()
    # More than a kernel takes at once, and all of it comes in one step.
    prompt = "z" * (8_000 if "logprobs" in asked else 400_000 if "return_token_ids" in asked else 6_000_000)
    body = {"prompt": prompt, "n": 3, "max_tokens": 20, "echo": True, "stream": True, **asked}
    reader, writer = await slow_client(site, body)
    while site.engine.runs:
        site.engine.step()
    assert not site.engine.cancelled
    writer.transport.resume_reading()
    answer = bytearray()
    while not answer.endswith(b"\r\n0\r\n\r\n"):
        answer += await reader.read(1 << 20)
    assert answer.count(b'"finish_reason":"length"') == 3
    assert b"data: [DONE]" in answer
    writer.close()
