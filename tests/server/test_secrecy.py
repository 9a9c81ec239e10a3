"""What people say and what opens the server stays out of logs, metrics and errors; and no request reaches out."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from asyncpage.errors import Failure
from asyncpage.logs import configure_logs
from tests.server.specimen import DOCUMENT, resolved, specimens

PROMPT, KEY, WRONG = "marker-prompt", "marker-key", "marker-wrong-key"
ROTATED = "arker-promptm"  # what the fake answers as a second choice
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}


async def session(site) -> list[str]:
    """What many clients do, well and badly; returns every answer that is an error."""
    errors: list[str] = []

    async def post(path: str, body: Any, **headers: str) -> str:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with site.session.post(site.url + path, data=data, headers={**AUTHORIZED, **headers}) as answer:
            text = await answer.text()
            if answer.status >= 400:
                errors.append(text)
            return text

    messages = [{"role": "user", "content": PROMPT, "name": PROMPT}]
    tool = {"type": "function", "function": {"name": "f", "description": PROMPT}}
    for stream in (False, True):
        shown = await post("/v1/completions", {"prompt": PROMPT, "n": 2, "stream": stream, "logprobs": 2, "echo": True})
        assert "prompt" in shown
        await post(
            "/v1/chat/completions", {"messages": messages, "stream": stream, "user": PROMPT, "frobnicate": PROMPT}
        )
        await post("/v1/completions", {"prompt": PROMPT * 100, "stream": stream})
        await post("/v1/completions", {"prompt": PROMPT, "timeout": 1e-6, "stream": stream})
    for changes in (
        {"messages": [*messages, {"role": "wizard", "content": PROMPT}]},
        {"messages": [{"role": "user", "content": {"text": PROMPT}}]},
        {"messages": [{"role": "user", "content": [{"type": "hologram", "text": PROMPT}]}]},
        {"messages": messages, "tools": [tool], "tool_choice": "no"},
        {"messages": messages, "temperature": 9},
        {"messages": messages, "stop": [""]},
        {"messages": messages, "chat_template": PROMPT},
        {"messages": messages, "structured_outputs": {"regex": 5, "json": {"title": PROMPT}}},
    ):
        await post("/v1/chat/completions", changes)
    for raw in (
        b"{",
        json.dumps({"prompt": PROMPT}).encode()[:-4],
        json.dumps([PROMPT]).encode(),
        b"\xff" + PROMPT.encode(),
    ):
        await post("/v1/completions", raw)
    await post("/tokenize", {"prompt": PROMPT, "return_token_strs": True})
    await post("/detokenize", {"tokens": [*PROMPT.encode(), 999]})
    for key in (WRONG, KEY + "x", KEY[:-1]):
        await post("/v1/completions", {"prompt": PROMPT}, Authorization=f"Bearer {key}")
    async with site.session.get(f"{site.url}/v1/models", headers={"X-Api-Key": WRONG}) as answer:
        errors.append(await answer.text())
    for line in (f"Authorization: Bearer {KEY}\x00", f"X: {PROMPT}\x00", f"{PROMPT}"):
        found = await site.raw(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{line}\r\n\r\n")
        errors.append(found.decode())
    return errors


async def ends_badly(site) -> None:
    """A client leaves, a call fails halfway, and the server has a fault."""
    site.engine.hold()
    body = {"prompt": PROMPT, "stream": True}
    for end in ("leaves", "fails"):
        answer = await site.session.post(site.url + "/v1/completions", json=body, headers=AUTHORIZED)
        site.engine.step()
        await answer.content.readuntil(b"\n\n")
        if end == "leaves":
            answer.close()
            await site.engine.until(lambda: not site.engine.runs)
        else:
            site.engine.fail_all(Failure(500, "the step failed", "poison"))
            await answer.read()
    site.engine.release()


@pytest.mark.parametrize("style", ["console", "json"])
async def test_nothing_that_was_said_and_no_key_is_logged_counted_or_told(serve, style: str, monkeypatch) -> None:
    log = io.StringIO()
    configure_logs("debug", style, log)
    site = await serve(api_key=(KEY,), log_level="debug")
    errors = await session(site)
    await ends_badly(site)

    def broken(*_: object) -> None:
        raise LookupError("inner detail")

    monkeypatch.setattr(site.engine, "submit", broken)
    status, _ = await site.post("/v1/completions", {"prompt": PROMPT}, **AUTHORIZED)
    assert status == 500
    metrics = (await site.get("/metrics", **AUTHORIZED)).text
    written = log.getvalue()
    assert written.count("request.finished") >= 10
    assert "LookupError" in written  # a traceback, so its local variables would be there too
    assert len(errors) > 20
    for word in ("marker", ROTATED):
        assert word not in written
        assert word not in metrics
    for error in errors:
        assert KEY not in error.replace(WRONG, "")
        assert PROMPT not in error


class Trap:
    """A place that a server might be sent to: counts who comes."""

    def __init__(self) -> None:
        self.visitors = 0

    async def __aenter__(self) -> Trap:
        self._server = await asyncio.start_server(self._came, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/x"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visitors += 1
        writer.close()


def aimed(value: Any, url: str) -> Any:
    """The same with an address in every place for a text that is free."""
    match value:
        case dict():
            return {name: item if name in ("role", "type") else aimed(item, url) for name, item in value.items()}
        case list():
            return [aimed(item, url) for item in value]
        case str():
            return url
        case _:
            return value


async def test_no_request_makes_the_server_reach_out(site) -> None:
    async with Trap() as trap:
        content = [
            {"type": "image_url", "image_url": {"url": trap.url}},
            {"type": "input_image", "image_url": trap.url},
            {"type": "input_audio", "input_audio": {"data": trap.url, "format": "wav"}},
            {"type": "file", "file": {"file_id": trap.url, "file_data": trap.url}},
            {"type": "video_url", "video_url": {"url": trap.url}},
        ]
        bodies = [("/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]}) for part in content]
        for path, methods in DOCUMENT["paths"].items():
            if "requestBody" in methods.get("post", {}):
                schema = resolved(methods["post"]["requestBody"]["content"]["application/json"]["schema"])
                whole = aimed(specimens(schema)[0], trap.url)
                needed = {name: whole[name] for name in schema.get("required", ())}
                bodies += [(path, {**needed, name: value}) for name, value in whole.items()]
        statuses = [(await site.post(path, {**body, "model": None}))[0] for path, body in bodies]
        assert statuses[: len(content)] == [400] * len(content)
        assert statuses.count(200) > 50
        assert not trap.visitors
        reader, writer = await asyncio.open_connection("127.0.0.1", int(trap.url.split(":")[2][:-2]))
        await reader.read()
        writer.close()
        assert trap.visitors == 1
