"""Listening, draining, stopping, and what becomes of open calls when the engine dies."""

import asyncio
import json
import os
import socket
import stat

import aiohttp
import pytest
import uvloop
from structlog.testing import capture_logs

from asyncpage.errors import ActorDied, UsageError
from asyncpage.server.config import ServerConfig
from asyncpage.server.http_server import HttpServer, serve_http


async def open_stream(session: aiohttp.ClientSession, url: str) -> aiohttp.ClientResponse:
    answer = await session.post(url + "/v1/completions", json={"prompt": "abc", "stream": True})
    assert answer.status == 200
    return answer


async def test_a_busy_port_is_told_in_one_line(site) -> None:
    other = HttpServer(site.engine, ServerConfig(port=site.port))
    with pytest.raises(UsageError, match=rf"cannot listen on 127\.0\.0\.1:{site.port}.*--port"):
        await other.start()


async def test_impossible_settings_are_refused_before_anything_listens(engine) -> None:
    with pytest.raises(UsageError, match="--api-key"):
        HttpServer(engine, ServerConfig(api_key=("",)))


async def test_an_exposed_server_without_a_key_is_warned_of(serve) -> None:
    with capture_logs() as lines:
        await serve(host="0.0.0.0")
        await serve(host="0.0.0.0", api_key=("k",))
        await serve()
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["server.exposed"]


async def test_a_unix_socket_is_private_and_leaves_nothing(engine, tmp_path) -> None:
    path = str(tmp_path / "api.sock")
    before = os.umask(0)
    try:
        server = HttpServer(engine, ServerConfig(uds=path))
        await server.start()
    finally:
        os.umask(before)
    assert server.url == f"unix:{path}"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session:
        async with session.get("http://localhost/health") as answer:
            assert answer.status == 200
        async with session.post("http://localhost/v1/completions", json={"prompt": "a", "stream": True}) as answer:
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
    with pytest.raises(UsageError, match="another server does"):
        await HttpServer(engine, ServerConfig(uds=path)).start()
    await server.stop()
    assert not os.listdir(tmp_path)


async def test_a_socket_left_behind_is_taken_over_and_a_file_is_not(engine, tmp_path) -> None:
    stale, file = str(tmp_path / "stale.sock"), tmp_path / "notes.txt"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(stale)
    server = HttpServer(engine, ServerConfig(uds=stale))
    await server.start()
    await server.stop()
    file.write_text("keep me")
    with pytest.raises(UsageError, match="no socket"):
        await HttpServer(engine, ServerConfig(uds=str(file))).start()
    assert file.read_text() == "keep me"


async def test_a_drain_refuses_what_is_new_and_finishes_what_runs(site) -> None:
    site.engine.hold()
    answer = await open_stream(site.session, site.url)
    draining = asyncio.create_task(site.server.drain(60.0))
    await site.engine.until(lambda: site.engine.state == "draining")
    status, body = await site.post("/v1/completions", {"prompt": "late"})
    assert (status, body["error"]["code"]) == (503, "draining")
    assert (await site.get("/ready")).status == 503
    assert (await site.get("/health")).status == 200
    site.engine.release()
    assert await draining is True
    assert (await answer.read()).endswith(b"data: [DONE]\n\n")


async def test_what_still_runs_at_the_end_of_the_drain_gets_an_error(site) -> None:
    site.engine.hold()
    answer = await open_stream(site.session, site.url)
    collecting = asyncio.create_task(site.post("/v1/completions", {"prompt": "whole"}))
    await site.engine.until(lambda: len(site.engine.runs) == 2)
    assert await site.server.drain(0.0) is False
    await site.server.stop()
    event, done, _ = (await answer.read()).split(b"\n\n")
    assert json.loads(event[6:])["error"]["code"] == "draining"
    assert done == b"data: [DONE]"
    status, body = await collecting
    assert (status, body["error"]["code"]) == (503, "draining")
    assert len(site.engine.cancelled) == 2
    with pytest.raises(aiohttp.ClientConnectionError):
        await site.get("/health")


async def test_an_answer_that_is_complete_is_sent_although_the_server_stops(site) -> None:
    site.engine.hold()
    collecting = asyncio.create_task(site.post("/v1/completions", {"prompt": "ab"}))
    await site.engine.until(lambda: len(site.engine.runs) == 1)
    for _ in "ab.":
        site.engine.step()
    await site.server.stop()
    status, body = await collecting
    assert (status, body["choices"][0]["text"]) == (200, "ab")


async def test_serving_ends_with_the_shutdown_event(engine) -> None:
    shutdown = asyncio.Event()
    urls: asyncio.Queue[str] = asyncio.Queue()
    serving = asyncio.create_task(serve_http(engine, ServerConfig(port=0), shutdown=shutdown, on_start=urls.put_nowait))
    url = await urls.get()
    async with aiohttp.ClientSession() as session:
        async with session.get(url + "/health") as answer:
            assert answer.status == 200
        shutdown.set()
        await serving
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(url + "/health")


async def test_a_second_signal_cuts_the_drain_short(engine) -> None:
    shutdown, abort = asyncio.Event(), asyncio.Event()
    urls: asyncio.Queue[str] = asyncio.Queue()
    config = ServerConfig(port=0, drain_timeout_s=3600.0)
    serving = asyncio.create_task(serve_http(engine, config, shutdown=shutdown, abort=abort, on_start=urls.put_nowait))
    url = await urls.get()
    engine.hold()
    async with aiohttp.ClientSession() as session:
        answer = await open_stream(session, url)
        shutdown.set()
        await engine.until(lambda: engine.state == "draining")
        abort.set()
        await serving
        assert b'"code":"draining"' in await answer.read()


async def test_when_the_engine_dies_every_call_gets_an_error_and_serving_says_why(engine) -> None:
    told: list[str] = []
    engine.on_death = told.append
    urls: asyncio.Queue[str] = asyncio.Queue()
    serving = asyncio.create_task(
        serve_http(engine, ServerConfig(port=0), shutdown=asyncio.Event(), on_start=urls.put_nowait)
    )
    url = await urls.get()
    engine.hold()
    async with aiohttp.ClientSession() as session:
        answer = await open_stream(session, url)
        engine.state = "dead"
        engine.on_death("the scheduler raised ValueError")
        with pytest.raises(ActorDied, match="the scheduler raised ValueError"):
            await serving
        rest = await answer.read()
    assert b'"code":"engine_dead"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")
    assert told == ["the scheduler raised ValueError"]


def test_streams_and_disconnects_work_on_uvloop(make_engine) -> None:
    async def main() -> None:
        engine = make_engine()
        server = HttpServer(engine, ServerConfig(port=0))
        await server.start()
        async with aiohttp.ClientSession() as session:
            answer = await session.post(server.url + "/v1/completions", json={"prompt": "abc", "stream": True})
            body = await answer.read()
            assert body.count(b"data: ") == 5
            assert body.endswith(b"data: [DONE]\n\n")
            engine.hold()
            answer = await open_stream(session, server.url)
            answer.close()
            await engine.until(lambda: not engine.runs)
            assert len(engine.cancelled) == 1
        await server.stop()

    uvloop.run(main())
