"""Runs the requests of a batch through the server's own routes, so many at once, and writes each answer as it comes.

The command starts the engine and calls `run_requests`; the requests go over a Unix socket in a folder that only this
user can enter, so that a batch takes the very way that a client's request takes.

INVARIANT: a request has one line in the results, or none when the run ended before its answer.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from asyncpage.cli.batch.request_line import BatchRequest
from asyncpage.cli.batch.result_file import ResultFile
from asyncpage.server.config import ServerConfig
from asyncpage.server.engine_port import Engine
from asyncpage.server.http_server import HttpServer

ASK_AGAIN = (429, 503)
"""Full or restarting: no answer to the request, only to its time."""

MAX_BODY_BYTES = 256 * 1024 * 1024
"""A file of one's own needs no guard against strangers."""


async def run_requests(
    engine: Engine,
    requests: Iterator[BatchRequest],
    results: ResultFile,
    *,
    at_once: int,
    is_over: Callable[[], bool],
    on_answer: Callable[[bool], None],
) -> None:
    """Answer every request that `results` has no answer to.

    `is_over`: nothing that comes now is an answer, because the engine is dead. `on_answer` is told whether it is good.
    Errors: `AsyncpageError` when the results cannot be written.
    """
    waiting = (request for request in requests if request.custom_id not in results.answered)

    async def work(session: aiohttp.ClientSession) -> None:
        for request in waiting:
            result = await _result(session, request)
            if is_over():
                return
            results.write(result)
            on_answer(result["error"] is None and result["response"]["status_code"] < 400)

    async with _connected(engine, at_once) as session:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(work(session))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None


@asynccontextmanager
async def _connected(engine: Engine, at_once: int) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a server that nobody else can reach."""
    with tempfile.TemporaryDirectory(prefix="asyncpage-batch-") as folder:  # mode 0700
        path = str(Path(folder) / "api.sock")
        server = HttpServer(engine, ServerConfig(uds=path, max_body_bytes=MAX_BODY_BYTES, log_requests=False))
        await server.start()
        try:
            connector = aiohttp.UnixConnector(path, limit=at_once)
            timeout = aiohttp.ClientTimeout(total=None)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                yield session
        finally:
            await server.stop()


async def _result(session: aiohttp.ClientSession, request: BatchRequest) -> dict[str, Any]:
    """The output line of a request."""
    line: dict[str, Any] = {
        "id": f"batch_req_{secrets.token_hex(12)}",
        "custom_id": request.custom_id,
        "response": None,
        "error": None,
    }
    if request.fault is not None:
        line["error"] = {"code": "invalid_request", "message": request.fault}
        return line
    while True:
        async with session.post(f"http://localhost{request.url}", json=request.body) as answer:
            body = await answer.json()
            if answer.status not in ASK_AGAIN:
                request_id = answer.headers["X-Request-Id"]
                line["response"] = {"status_code": answer.status, "request_id": request_id, "body": body}
                return line
            retry_after_s = float(answer.headers["Retry-After"])
        await asyncio.sleep(retry_after_s)
