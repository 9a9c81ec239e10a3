"""The load generator against a small server that speaks the API and keeps a ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from asyncpage.cli.load import LoadFailed, Plan, _arrivals, _prompts, drive, first_model


@dataclass
class Server:
    """Answers with as many chunks as tokens were asked for.

    `gate` holds answers back when it is closed; `is_crowded` is set when `crowd` requests are under way.
    """

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    crowd: int = 0
    is_crowded: asyncio.Event = field(default_factory=asyncio.Event)
    ends: bytes = b"data: [DONE]\n\n"
    status: int = 200

    async def models(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("Authorization"))
        return web.json_response({"object": "list", "data": [{"id": "org/model"}]}, status=self.status)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("Authorization"))
        if self.status != 200:
            return web.json_response({"error": {"message": "full"}}, status=self.status)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        if self.under_way == self.crowd:
            self.is_crowded.set()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self.gate.wait()
        is_chat = "messages" in body
        if is_chat:
            await self.send(response, {"choices": [{"delta": {"role": "assistant"}}]})
        for _ in range(body["max_tokens"]):
            await self.send(response, {"choices": [{"delta": {"content": "x"}} if is_chat else {"text": "x"}]})
        await response.write(b": keep-alive\n\n")
        await self.send(response, {"choices": [{"delta": {}, "text": "", "finish_reason": "length"}]})
        usage = {
            "prompt_tokens": 11,
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        await self.send(response, {"choices": [], "usage": usage})
        await response.write(self.ends)
        self.under_way -= 1
        return response

    async def send(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        text = b"data: " + json.dumps(event).encode() + b"\n\n"
        await response.write(text[:7])  # events do not arrive in one piece
        await response.write(text[7:])


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    it = Server()
    it.gate.set()
    app = web.Application()
    app.router.add_get("/v1/models", it.models)
    app.router.add_post("/v1/completions", it.answer)
    app.router.add_post("/v1/chat/completions", it.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    it.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield it
    await runner.cleanup()


def plan(server: Server, **changes: Any) -> Plan:
    base = Plan(server.url, "/v1/completions", "m", "", 6, float("inf"), None, 5, 4, 0.0, 0)
    return replace(base, **changes)


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
async def test_every_answer_is_counted_with_the_servers_own_counts(server: Server, endpoint: str) -> None:
    steps: list[tuple[int, int]] = []
    samples, duration_s = await drive(plan(server, endpoint=endpoint), now, lambda *step: steps.append(step))
    assert [sample.error for sample in samples] == [""] * 6
    assert [sample.output_tokens for sample in samples] == [4] * 6
    assert [len(sample.arrivals) for sample in samples] == [4] * 6
    assert [(sample.prompt_tokens, sample.cached_tokens) for sample in samples] == [(11, 3)] * 6
    assert all(sample.sent <= sample.arrivals[0] <= sample.ended for sample in samples)
    assert duration_s > 0
    assert steps == [(i, 6) for i in range(1, 7)]


async def test_requests_ask_for_exactly_the_tokens(server: Server) -> None:
    await drive(plan(server, api_key="k"), now, lambda *_: None)
    body = server.bodies[0]
    assert (body["max_tokens"], body["ignore_eos"], body["stream"], body["model"]) == (4, True, True, "m")
    assert all(len(body["prompt"].split()) == 5 for body in server.bodies)
    assert set(server.keys) == {"Bearer k"}


async def test_no_more_than_the_bound_are_under_way(server: Server) -> None:
    server.gate.clear()
    server.crowd = 2
    run = asyncio.ensure_future(drive(plan(server, max_concurrency=2), now, lambda *_: None))
    await server.is_crowded.wait()
    server.gate.set()
    samples, _ = await run
    assert server.most_under_way == 2
    assert len(server.bodies) == len(samples) == 6


async def test_all_at_once_means_all_at_once(server: Server) -> None:
    server.gate.clear()
    server.crowd = 40
    run = asyncio.ensure_future(drive(plan(server, num_prompts=40), now, lambda *_: None))
    await server.is_crowded.wait()
    server.gate.set()
    await run


async def test_a_stream_that_breaks_off_is_a_failure(server: Server) -> None:
    server.ends = b""
    samples, _ = await drive(plan(server), now, lambda *_: None)
    assert {sample.error for sample in samples} == {"the stream ended without [DONE]"}


async def test_an_error_event_is_a_failure(server: Server) -> None:
    server.ends = b'data: {"error": {"message": "the executor was lost"}}\n\ndata: [DONE]\n\n'
    samples, _ = await drive(plan(server), now, lambda *_: None)
    assert all("the executor was lost" in sample.error for sample in samples)


async def test_a_refusal_is_a_failure_with_its_text(server: Server) -> None:
    server.status = 429
    samples, _ = await drive(plan(server), now, lambda *_: None)
    assert all(sample.error.startswith("HTTP 429: ") and "full" in sample.error for sample in samples)


async def test_the_model_is_the_first_that_is_listed(server: Server) -> None:
    assert await first_model(server.url, "") == "org/model"
    server.status = 401
    with pytest.raises(LoadFailed, match="answered 401"):
        await first_model(server.url, "")


def test_the_seed_fixes_prompts_and_arrivals() -> None:
    one = Plan("", "", "", "", 20, 2.0, None, 30, 4, 0.0, 1)
    assert list(_prompts(one)) == list(_prompts(one))
    assert list(_prompts(one)) != list(_prompts(replace(one, seed=2)))
    assert list(_arrivals(one)) == list(_arrivals(one))
    assert len(set(_prompts(one))) == 20


def test_arrivals_have_the_asked_rate() -> None:
    many = Plan("", "", "", "", 4001, 8.0, None, 1, 1, 0.0, 1)
    times = list(_arrivals(many))
    assert times == sorted(times)
    # The mean gap of 4,000 exponential gaps lies within 5 standard errors of 1/8 s.
    assert times[-1] / 4000 == pytest.approx(1 / 8, rel=5 / 4000**0.5)
    assert set(_arrivals(replace(many, request_rate=float("inf")))) == {0.0}
