"""Requests made from the API's own description, fitting and nearly fitting, in any number.

`ASYNCPAGE_FUZZ=500000` sends so many; without it five thousand, which take a minute of one core.

INVARIANT: none is answered with a fault of ours or later than in 5 s, and none changes what others are answered.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncpage.server.config import ServerConfig
from asyncpage.server.http_server import HttpServer
from tests.server.conftest import EchoEngine
from tests.server.specimen import DOCUMENT, resolved

REQUESTS = int(os.environ.get("ASYNCPAGE_FUZZ", "5000"))
LATEST_S = 5.0
MOST_OPTIONAL = 6  # fields beside the needed ones: whole bodies of 80 would rarely agree with themselves

ANYTHING: Mapping[str, Any] = {}

Request = tuple[str, str, bytes | None]

NUMBERS = [
    0,
    1,
    -1,
    0.5,
    -0.0,
    2**31,
    2**63,
    -(2**63) - 1,
    2**64,
    10**400,
    1e308,
    1e-320,
    math.nan,
    math.inf,
    -math.inf,
]
TEXTS = ["", "a", "\x00", "\ud800", "\u2028", "🎉" * 50, "a" * 5000, "null", "1e999"]
LISTS = [[], [[]], [None], [""], [True], [1.0], [1.5], [-1], [256], [257], [1] * 600, ["a"] * 300]
OBJECTS = [{}, {"": {}}, {"type": "text"}, {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}]
JUNK = st.one_of(
    st.sampled_from([None, True, False, *NUMBERS, *TEXTS, *LISTS, *OBJECTS]),
    st.text(max_size=20),
    st.integers(),
    st.floats(),
    st.recursive(st.none() | st.booleans() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3)),
    st.integers(1, 120).map(lambda depth: json.loads("[" * depth + "]" * depth)),
)


_KNOWN: dict[int, st.SearchStrategy[Any]] = {}
"""By the identity of a schema, which the document keeps: to make and check a strategy costs more than to draw of it."""


def fitting(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Values that fit a schema of the document."""
    schema = resolved(schema)
    if id(schema) not in _KNOWN:
        _KNOWN[id(schema)] = _values(schema)
    return _KNOWN[id(schema)]


def _values(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of(*map(fitting, schema["anyOf"]))
    kinds = schema.get("type", "null")
    return st.one_of(*(_of_kind(schema, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)))


def _of_kind(schema: Mapping[str, Any], kind: str) -> st.SearchStrategy[Any]:
    low, high = schema.get("minimum"), schema.get("maximum")
    match kind:
        case "string" if "pattern" in schema:
            return st.sampled_from(schema["examples"]) | st.from_regex(schema["pattern"])
        case "string":
            return st.text(min_size=schema.get("minLength", 0), max_size=min(40, schema.get("maxLength", 40)))
        case "integer":
            small = st.integers(max(low, -9) if low is not None else -9, min(high, 260) if high is not None else 260)
            return small | st.integers(low, high)
        case "number":
            return st.floats(low, high, allow_nan=False, allow_infinity=False)
        case "boolean":
            return st.booleans()
        case "array":
            items = st.deferred(lambda: fitting(schema.get("items", ANYTHING)))
            return st.lists(items, min_size=schema.get("minItems", 0), max_size=min(4, schema.get("maxItems", 4)))
        case "object":
            return _of_fields(schema)
        case _:
            return st.none()


def _of_fields(schema: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    properties = schema.get("properties", {})
    if not properties and schema.get("examples"):
        return st.builds(dict, st.just(schema["examples"][0]))
    needed = schema.get("required", [])
    others = [name for name in properties if name not in needed]
    choices = st.lists(st.sampled_from(others), max_size=MOST_OPTIONAL, unique=True) if others else st.just([])

    @st.composite
    def fields(draw: st.DrawFn) -> dict[str, Any]:
        return {name: draw(fitting(properties[name])) for name in [*needed, *draw(choices)]}

    return fields()


def _misplaced(draw: st.DrawFn, value: Any) -> Any:
    """The same with one to three things put out of place."""
    for _ in range(draw(st.integers(1, 3))):
        value = _disturbed(draw, value)
    return value


def _disturbed(draw: st.DrawFn, value: Any) -> Any:
    """`value` with junk at one place of it, or without something, or with something too much."""
    if isinstance(value, dict) and value and draw(st.integers(0, 9)) < 9:
        name = draw(st.sampled_from(sorted(value)))
        match draw(st.sampled_from(["within", "within", "within", "gone", "renamed"])):
            case "within":
                return {**value, name: _disturbed(draw, value[name])}
            case "gone":
                return {key: item for key, item in value.items() if key != name}
            case _:
                return {**value, draw(st.text(max_size=5)): value[name]}
    if isinstance(value, list) and value and draw(st.integers(0, 9)) < 7:
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], _disturbed(draw, value[place]), *value[place + 1 :]]
    return draw(JUNK)


BODIES: Mapping[str, Mapping[str, Any]] = {
    path: methods["post"]["requestBody"]["content"]["application/json"]["schema"]
    for path, methods in DOCUMENT["paths"].items()
    if "requestBody" in methods.get("post", {})
}
SOME_BODY = st.sampled_from([(path, fitting(schema)) for path, schema in sorted(BODIES.items())])
# How the last event of each route's streams begins.
ENDS: Mapping[str, bytes] = {
    "/v1/chat/completions": rb"data: \[DONE\]",
    "/v1/completions": rb"data: \[DONE\]",
    "/v1/responses": rb"event: response\.(completed|incomplete|failed)\n",
    "/v1/messages": rb"event: (message_stop|error)\n",
}
# The streams that never end by themselves are left out.
SOME_PATH = st.sampled_from([path for path in DOCUMENT["paths"] if path not in ("/events/kv", "/events/chart")])
SOME_METHOD = st.sampled_from(["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode()


@st.composite
def cut(draw: st.DrawFn, body: bytes) -> bytes:
    """Bytes that are hardly JSON any more."""
    place = draw(st.integers(0, len(body)))
    return body[:place] + draw(st.binary(max_size=4)) + body[place + draw(st.integers(0, 4)) :]


@st.composite
def requests_that_fit(draw: st.DrawFn) -> Request:
    path, bodies = draw(SOME_BODY)
    return "POST", path, encoded(draw(bodies))


@st.composite
def requests_that_nearly_fit(draw: st.DrawFn) -> Request:
    match draw(st.sampled_from(["body", "body", "body", "bytes", "path"])):
        case "path":
            path = draw(SOME_PATH)
            if draw(st.booleans()):
                path = path.partition("{")[0] + draw(st.text("abc/{}%0f.é", max_size=8))
            method = draw(SOME_METHOD)
            return method, path, draw(st.none() | st.binary(max_size=20))
        case kind:
            path, bodies = draw(SOME_BODY)
            body = encoded(_misplaced(draw, draw(bodies)))
            return "POST", path, draw(cut(body)) if kind == "bytes" else body


@dataclass
class Target:
    """A server that runs beside the test, and what was answered so far."""

    loop: asyncio.AbstractEventLoop
    engine: EchoEngine
    url: str
    session: aiohttp.ClientSession
    statuses: dict[int, int]

    def send(self, request: Request) -> None:
        self.loop.run_until_complete(self._send(*request))

    async def _send(self, method: str, path: str, body: bytes | None) -> None:
        began = time.monotonic()
        async with asyncio.timeout(LATEST_S), self.session.request(method, self.url + path, data=body) as answer:
            text = await answer.read()
        assert time.monotonic() - began < LATEST_S
        self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
        if answer.status == 503:
            assert int(answer.headers["Retry-After"]) >= 1
        elif answer.status == 504:
            assert b'"timeout"' in (body or b"")  # whoever sets a deadline may miss it
        else:
            assert answer.status < 500, text
        assert answer.headers["X-Request-Id"]
        if answer.content_type == "text/event-stream":
            assert text.endswith(b"\n\n")
            assert re.match(ENDS[path], text[:-2].rpartition(b"\n\n")[2])
        elif answer.status >= 400 and method != "HEAD":
            fields = (
                {"message", "type"}
                if re.fullmatch("/v1/messages(/.*)?", path)
                else {"message", "type", "param", "code"}
            )
            assert set(json.loads(text)["error"]) == fields

    def canary(self) -> dict[str, Any]:
        async def ask() -> dict[str, Any]:
            body = {"prompt": "the canary sings", "temperature": 0, "logprobs": 1, "echo": True}
            async with self.session.post(self.url + "/v1/completions", json=body) as answer:
                found: dict[str, Any] = await answer.json()
                return found

        found = self.loop.run_until_complete(ask())
        return {name: value for name, value in found.items() if name not in ("id", "created")}


@pytest.fixture
def target() -> Iterator[Target]:
    loop = asyncio.new_event_loop()

    async def start() -> tuple[EchoEngine, HttpServer, aiohttp.ClientSession]:
        engine = EchoEngine()
        engine.max_requests = 16  # what runs is not what is tested
        engine.max_model_len = 128
        server = HttpServer(engine, ServerConfig(port=0, log_requests=False))
        await server.start()
        return engine, server, aiohttp.ClientSession()

    engine, server, session = loop.run_until_complete(start())
    try:
        yield Target(loop, engine, server.url, session, {})
    finally:
        loop.run_until_complete(session.close())
        loop.run_until_complete(server.stop())
        loop.close()


@pytest.mark.parametrize(
    ("requests", "least_done"), [(requests_that_fit(), 0.2), (requests_that_nearly_fit(), 0.0)], ids=["fit", "nearly"]
)
def test_no_request_is_a_fault_or_late_or_leaves_a_trace(
    target: Target, requests: st.SearchStrategy[Request], least_done: float
) -> None:
    before = target.canary()
    whole: Callable[..., None] = settings(
        max_examples=REQUESTS // 2,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )(given(requests)(target.send))
    whole()
    assert target.canary() == before
    assert not target.engine.runs
    assert target.statuses.get(400, 0) > 0
    assert target.statuses.get(200, 0) >= least_done * sum(target.statuses.values())
