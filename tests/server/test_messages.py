"""Messages over HTTP: the events in their order, the whole message, its errors, and how calls end."""

import asyncio
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncpage.errors import Failure

PATH = "/v1/messages"
TEXTS = st.text('ab é\n"\\😀\u2028', min_size=1, max_size=6)
ANSWERS = st.lists(
    TEXTS
    | TEXTS.map(lambda text: f"\1{text}\2")
    | st.tuples(TEXTS, TEXTS).map(lambda pair: f"\3{pair[0]}\4{json.dumps({'a': pair[1]})}\5"),
    max_size=5,
).map("".join)


def body_of(content: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 100, **fields}


async def ask(site, content: str = "hello", **fields: Any) -> dict[str, Any]:
    status, body = await site.post(PATH, body_of(content, **fields))
    assert status == 200, body
    return body


async def stream(site, content: str = "hello", **fields: Any) -> list[dict[str, Any]]:
    return [event for _, event in await site.events(PATH, **body_of(content, **fields))]


async def test_a_message_has_the_published_shape(site) -> None:
    body = await ask(site, "héy", model="org/alias")
    assert re.fullmatch("msg_[0-9a-f]{32}", body.pop("id"))
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "org/alias",
        "content": [{"type": "text", "text": "héy"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len("user: héy\n".encode()),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 5,
        },
    }


async def test_the_events_of_a_message_come_in_the_published_order(site, marked) -> None:
    found = await stream(site, '\1hm\2é\3get\4{"a": 1}\5')
    start = found[0]["message"]
    call = next(event for event in found if event.get("content_block", {}).get("type") == "tool_use")
    tokens = len(b'user: \1hm\2\xc3\xa9\3get\4{"a": 1}\5\n')
    usage = {"input_tokens": tokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    assert found == [
        {
            "type": "message_start",
            "message": {
                "id": start["id"],
                "type": "message",
                "role": "assistant",
                "model": "echo",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {**usage, "output_tokens": 0},
            },
        },
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "h"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "m"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "é"}},
        {"type": "content_block_stop", "index": 1},
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "tool_use", "id": call["content_block"]["id"], "name": "get", "input": {}},
        },
        *(
            {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": letter}}
            for letter in '{"a": 1}'
        ),
        {"type": "content_block_stop", "index": 2},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {**usage, "output_tokens": tokens - len("user: \n") + 1},
        },
        {"type": "message_stop"},
    ]
    assert re.fullmatch("msg_[0-9a-f]{32}", start["id"])
    assert re.fullmatch("toolu_[0-9a-f]{32}", call["content_block"]["id"])


def replayed(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client has at the end, put together from the events."""
    message: dict[str, Any] = {}
    arguments: dict[int, str] = {}
    for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                match delta["type"]:
                    case "input_json_delta":
                        arguments[event["index"]] = arguments.get(event["index"], "") + delta["partial_json"]
                    case kind:
                        block[kind.removesuffix("_delta")] += delta[kind.removesuffix("_delta")]
            case "message_delta":
                message = {**message, **event["delta"], "usage": event["usage"]}
    for index, text in arguments.items():
        try:
            message["content"][index]["input"] = json.loads(text)
        except json.JSONDecodeError:
            assert message["stop_reason"] == "max_tokens"
    return message


def without_names(message: dict[str, Any]) -> dict[str, Any]:
    stripped: dict[str, Any] = json.loads(re.sub(r"(msg|toolu)_[0-9a-f]{32}", r"\1", json.dumps(message)))
    usage = stripped["usage"]  # the second finds what the first computed
    usage["input_tokens"] += usage.pop("cache_read_input_tokens")
    return stripped


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=ANSWERS, most=st.integers(1, 60))
def test_a_stream_joined_is_the_collected_message(in_site, content, most) -> None:
    async def both(site) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        return await ask(site, content, max_tokens=most), await stream(site, content, max_tokens=most)

    body, events = in_site(both)
    assert without_names(replayed(events)) == without_names(body)


async def test_the_reason_of_the_end_is_told(site, marked) -> None:
    for content, fields, reason in (
        ("hello", {}, ("end_turn", None)),
        ("hello", {"max_tokens": 2}, ("max_tokens", None)),
        ("hello", {"stop_sequences": ["x", "ll"]}, ("stop_sequence", "ll")),
        ("\3f\4{}\5", {}, ("tool_use", None)),
        ("\3f\4{}\5", {"max_tokens": 4}, ("max_tokens", None)),
    ):
        body = await ask(site, content, **fields)
        assert (body["stop_reason"], body["stop_sequence"]) == reason
        *_, delta, _ = await stream(site, content, **fields)
        assert (delta["delta"]["stop_reason"], delta["delta"]["stop_sequence"]) == reason


async def test_an_answer_without_a_word_has_no_block(site) -> None:
    assert (await ask(site, ""))["content"] == []
    assert [event["type"] for event in await stream(site, "")] == ["message_start", "message_delta", "message_stop"]


async def test_input_that_was_cut_off_or_is_no_object_is_empty(site, marked) -> None:
    for content, most in (('\3f\4{"a": 1', 100), ('\3f\4{"a": 1}\5', 7), ("\3f\4[1]\5", 100)):
        (block,) = (await ask(site, content, max_tokens=most))["content"]
        assert (block["type"], block["name"], block["input"]) == ("tool_use", "f", {})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"a": 1, "a": 2}', {"a": 2}),
        (r'{"a": "x\ud800"}', {"a": "x\ud800"}),
        (r'{"a": "\ud83d\ude00"}', {"a": "\U0001f600"}),
        ('{"a": 1e400}', {}),
        ('{"a": NaN}', {}),
    ],
)
async def test_input_is_what_a_client_would_read_of_it_and_always_json(site, marked, arguments: str, told: Any) -> None:
    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} in the answer")

    async with site.session.post(site.url + PATH, json=body_of(f"\3f\4{arguments}\5")) as answer:
        (block,) = json.loads(await answer.text(), parse_constant=refuse)["content"]
    assert block["input"] == told


async def test_cached_tokens_are_counted_apart(site) -> None:
    first = (await ask(site, "x" * 40))["usage"]
    second = (await ask(site, "x" * 40))["usage"]
    *_, delta, _ = await stream(site, "x" * 40)
    assert (first["input_tokens"], first["cache_read_input_tokens"]) == (47, 0)
    assert (second["input_tokens"], second["cache_read_input_tokens"]) == (15, 32)
    assert delta["usage"] == second


async def test_tokens_are_counted_as_they_would_run(site, marked) -> None:
    asked = {"messages": [{"role": "user", "content": "héllo"}], "system": "be brief"}
    status, counted = await site.post(PATH + "/count_tokens", asked)
    assert (status, counted) == (200, {"input_tokens": len("system: be brief\nuser: héllo\n".encode())})
    (prompt,) = site.engine.tokenized
    assert not site.engine.submitted
    tool = {"name": "f", "input_schema": {}}
    await site.post(PATH + "/count_tokens", {**asked, "tools": [tool]})
    await site.post(PATH, {**asked, "tools": [tool], "max_tokens": 1})
    assert site.engine.tokenized[1] == site.engine.submitted[0][0]
    assert site.engine.tokenized[1].tools != prompt.tools


ERRORS = [
    ("POST", PATH, {}, 400, "invalid_request_error"),
    ("POST", PATH + "/count_tokens", {}, 400, "invalid_request_error"),
    ("POST", PATH, {"model": "x"}, 404, "not_found_error"),
    ("POST", PATH + "/batches", {}, 404, "not_found_error"),
    ("GET", PATH, None, 405, "invalid_request_error"),
    ("POST", PATH, {"messages": "x" * 2000}, 413, "request_too_large"),
    ("POST", PATH, body_of("x" * 600), 400, "invalid_request_error"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "kind"), ERRORS)
async def test_every_error_has_this_apis_shape(serve, method, path, body, status: int, kind: str) -> None:
    site = await serve(max_body_bytes=1500)
    async with site.session.request(method, site.url + path, json=body) as answer:
        found = await answer.json()
        assert answer.status == status
        assert found["error"].pop("message")
        assert answer.headers["Request-Id"] == answer.headers["X-Request-Id"]
        assert found == {"type": "error", "error": {"type": kind}, "request_id": answer.headers["Request-Id"]}


async def test_errors_of_the_gate_and_of_the_engine_have_it_too(serve, site) -> None:
    guarded = await serve(api_key=("k",))
    for path in (PATH, PATH + "/count_tokens", PATH + "/nothing"):
        status, body = await guarded.post(path, {})
        assert (status, body["error"]["type"]) == (401, "authentication_error")
    assert (await guarded.post(PATH, body_of("a"), **{"X-Api-Key": "k"}))[0] == 200
    status, body = await site.post(PATH, body_of("a"), Origin="http://elsewhere.example")
    assert (status, body["error"]["type"]) == (403, "permission_error")
    site.engine.max_queue = 0
    async with site.session.post(site.url + PATH, json=body_of("a", stream=True)) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "3")
        assert (await answer.json())["error"]["type"] == "rate_limit_error"
    site.engine.state = "loading"
    for path in (PATH, PATH + "/count_tokens"):
        status, body = await site.post(path, body_of("a"))
        assert (status, body["error"]["type"]) == (503, "overloaded_error")


async def test_a_fault_of_ours_has_this_apis_shape_and_tells_no_insides(site, monkeypatch) -> None:
    async def broken(prompt: object) -> object:
        raise LookupError("inner detail")

    monkeypatch.setattr(site.engine, "tokenize", broken)
    status, body = await site.post(PATH + "/count_tokens", body_of("a"))
    assert (status, body["type"], body["error"]["type"]) == (500, "error", "api_error")
    assert "inner" not in json.dumps(body)


async def test_errors_of_other_routes_keep_their_shape(site) -> None:
    for path in ("/v1/chat/completions", "/v1/messagesx", "/v1/responses"):
        _, body = await site.post(path, {})
        assert set(body) == {"error"}


@pytest.mark.parametrize(("status", "kind"), [(500, "api_error"), (503, "overloaded_error"), (504, "timeout_error")])
async def test_a_failure_within_a_stream_is_an_error_event_then_the_end(site, status: int, kind: str) -> None:
    site.engine.hold()
    async with site.session.post(site.url + PATH, json=body_of("abc", stream=True)) as answer:
        await answer.content.readuntil(b"\n\n")
        site.engine.step()
        await answer.content.readuntil(b'"text":"a"}}\n\n')
        site.engine.fail_all(Failure(status, "the executor was lost too often", "executor_gone"))
        rest = await answer.read()
    error = {"type": "error", "error": {"type": kind, "message": "the executor was lost too often"}}
    assert site.named(rest) == [("error", error)]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_that_leaves_frees_its_request(site, is_streamed: bool) -> None:
    site.engine.hold()
    body = json.dumps(body_of("abc", stream=is_streamed)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await site.engine.until(lambda: len(site.engine.runs) == 1)
    if is_streamed:
        await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()
    await site.engine.until(lambda: not site.engine.runs)
    assert site.engine.cancelled == [1]


async def test_a_silent_stream_is_kept_alive_by_pings(serve) -> None:
    site = await serve(keep_alive_s=0.01)
    site.engine.hold()
    async with site.session.post(site.url + PATH, json=body_of("a", stream=True)) as answer:
        assert (await answer.content.readuntil(b"\n\n")).startswith(b"event: message_start\n")
        for _ in range(2):
            assert await answer.content.readuntil(b"\n\n") == b'event: ping\ndata: {"type":"ping"}\n\n'
        site.engine.release()
        assert (await answer.read()).endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
