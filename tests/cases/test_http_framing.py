"""HTTP framing: what is malformed is refused once and its connection closed; nothing is read as two requests."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from tests.cases.client import RawReply
from tests.cases.macros import expand
from tests.cases.model_folder import Model
from tests.cases.process_state import memory_bytes
from tests.cases.suite import Run, Suite, covers


def wire(raw: Any, run: Run) -> bytes:
    """The bytes of one `raw_http` entry. Only what a client wrote is in them, a repeated header line by line."""
    line, body = expand(raw["line"], run.client.names), expand(raw["body"], run.client.names)
    headers = []
    for header in raw["headers"]:
        text = expand(header, run.client.names).replace("$LEN", str(len(body.encode())))
        headers.append(text.removesuffix("\r\n"))
    return ("\r\n".join([line, *headers, "", ""]) + body).encode("utf-8")


def shown(raw: Any) -> str:
    return f"{str(raw['line'])[:60]} {str(raw['headers'][1:])[:120]} {str(raw['body'])[:60]}"


async def _check_table(run: Run, *, waits: str = "nothing waits", most_mb: int = 5) -> None:
    """`waits`: a body for whose end the server may wait in its own time, which is bounded."""
    await run.client.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    before = memory_bytes(run.server.pid)
    wrong = []
    for request in run.case.requests:
        reply = await run.client.raw(wire(request["raw_http"], run), limit_s=2.0 * run.suite.slack)
        if not _is_right(reply) and not (request["raw_http"]["body"] == waits and reply.data == b""):
            wrong.append(f"{shown(request['raw_http'])} -> {reply.statuses}, closed {reply.closed}")
    assert not wrong, "\n".join(wrong)
    assert memory_bytes(run.server.pid) - before < most_mb << 20


def _is_right(reply: RawReply) -> bool:
    """Refused once, or taken as the one request that it is."""
    final = [status for status in reply.statuses if status != 100]
    return len(final) == 1 and (final[0] == 200 or 400 <= final[0] < 500)


@covers("SEC-08")
async def test_malformed_http_is_refused_once(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        await _check_table(run)


@covers("SEC-08", long=True)
async def test_malformed_http_is_refused_once_by_the_parser_without_c(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny, how={"env": {"AIOHTTP_NO_EXTENSIONS": "1"}}) as run:
        await _check_table(run, waits="10000000000000000\r\nabc", most_mb=20)


@covers("SEC-08")
async def test_aiohttp_is_the_fixed_release(suite: Suite) -> None:
    assert tuple(int(part) for part in version("aiohttp").split(".")[:2]) >= (3, 14)
