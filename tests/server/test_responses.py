"""Responses over HTTP: the events in their order, the whole object, and how calls end."""

import asyncio
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from asyncpage.errors import Failure

PATH = "/v1/responses"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TEXTS = st.text('ab é\n"\\😀\u2028', min_size=1, max_size=6)
ANSWERS = st.lists(
    TEXTS
    | TEXTS.map(lambda text: f"\1{text}\2")
    | st.tuples(TEXTS, TEXTS).map(lambda pair: f"\3{pair[0]}\4{json.dumps({'a': pair[1]})}\5"),
    max_size=5,
).map("".join)

EMPTY = {
    "object": "response",
    "created_at": 1_700_000_000,
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "model": "echo",
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": False,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tools": [],
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message(id: str, status: str, *texts: str) -> dict[str, Any]:
    content = [text_part(text) for text in texts]
    return {"type": "message", "id": id, "status": status, "role": "assistant", "content": content}


async def ask(site, content: str = "hello", **fields: Any) -> dict[str, Any]:
    status, body = await site.post(PATH, {"input": content, **fields})
    assert status == 200, body
    Response.model_validate_json(json.dumps(body), strict=True)
    return body


async def stream(site, content: str = "hello", **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """The events, each with the types that clients expect and numbered in their order."""
    found = await site.events(PATH, input=content, **fields)
    for number, (_, event) in enumerate(found):
        EVENT.validate_json(json.dumps(event), strict=True)
        assert event["sequence_number"] == number
    return found


async def test_a_response_has_the_published_shape(site) -> None:
    body = await ask(site, "héy")
    item_id = body["output"][0]["id"]
    assert re.fullmatch("resp_[0-9a-f]{32}", body["id"])
    assert re.fullmatch("msg_[0-9a-f]{32}", item_id)
    assert body == {
        **EMPTY,
        "id": body["id"],
        "output": [message(item_id, "completed", "héy")],
        "usage": {
            "input_tokens": len("user: héy\n".encode()),
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 16,
        },
    }


async def test_the_events_of_a_text_come_in_the_published_order(site) -> None:
    found = await stream(site, "hé")
    response_id, item_id = found[0][1]["response"]["id"], found[2][1]["item"]["id"]
    begun = {**EMPTY, "id": response_id, "status": "in_progress", "output": [], "usage": None}
    where = {"item_id": item_id, "output_index": 0, "content_index": 0}
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 14,
    }
    done = message(item_id, "completed", "hé")
    expected: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": message(item_id, "in_progress")},
        {"type": "response.content_part.added", **where, "part": text_part("")},
        {"type": "response.output_text.delta", **where, "delta": "h", "logprobs": []},
        {"type": "response.output_text.delta", **where, "delta": "é", "logprobs": []},
        {"type": "response.output_text.done", **where, "text": "hé", "logprobs": []},
        {"type": "response.content_part.done", **where, "part": text_part("hé")},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {
            "type": "response.completed",
            "response": {**begun, "status": "completed", "output": [done], "usage": usage},
        },
    ]
    assert [event for _, event in found] == [
        {**event, "sequence_number": number} for number, event in enumerate(expected)
    ]


async def test_thoughts_and_calls_are_items_of_their_own(site, marked) -> None:
    found = await stream(site, '\1hm\2so\3get\4{"a"}\5')
    told = [(kind, event.get("output_index"), event.get("delta")) for kind, event in found[2:-1]]
    assert told == [
        ("response.output_item.added", 0, None),
        ("response.content_part.added", 0, None),
        ("response.reasoning_text.delta", 0, "h"),
        ("response.reasoning_text.delta", 0, "m"),
        ("response.reasoning_text.done", 0, None),
        ("response.content_part.done", 0, None),
        ("response.output_item.done", 0, None),
        ("response.output_item.added", 1, None),
        ("response.content_part.added", 1, None),
        ("response.output_text.delta", 1, "s"),
        ("response.output_text.delta", 1, "o"),
        ("response.output_text.done", 1, None),
        ("response.content_part.done", 1, None),
        ("response.output_item.done", 1, None),
        ("response.output_item.added", 2, None),
        *(("response.function_call_arguments.delta", 2, letter) for letter in '{"a"}'),
        ("response.function_call_arguments.done", 2, None),
        ("response.output_item.done", 2, None),
    ]
    thought, said, call = found[-1][1]["response"]["output"]
    assert thought == {
        "type": "reasoning",
        "id": thought["id"],
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
        "encrypted_content": None,
        "status": "completed",
    }
    assert said == message(said["id"], "completed", "so")
    assert re.fullmatch("rs_[0-9a-f]{32}", thought["id"])
    assert re.fullmatch("fc_[0-9a-f]{32} call_[0-9a-f]{32}", f"{call['id']} {call['call_id']}")
    assert (call["type"], call["name"], call["arguments"], call["status"]) == (
        "function_call",
        "get",
        '{"a"}',
        "completed",
    )
    added = next(event["item"] for _, event in found if event.get("item", {}).get("type") == "function_call")
    assert added == {**call, "arguments": "", "status": "in_progress"}
    arguments = next(event for kind, event in found if kind == "response.function_call_arguments.done")
    assert (arguments["arguments"], arguments["name"], arguments["item_id"]) == ('{"a"}', "get", call["id"])
    assert found[-1][1]["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}


def without_names(response: dict[str, Any]) -> dict[str, Any]:
    text = re.sub(r"(resp|msg|rs|fc|call)_[0-9a-f]{32}", r"\1", json.dumps(response))
    stripped: dict[str, Any] = json.loads(text)
    stripped["usage"]["input_tokens_details"].pop("cached_tokens")  # the second finds what the first computed
    return stripped


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=ANSWERS, most=st.none() | st.integers(1, 40))
def test_a_stream_joined_is_the_collected_response(in_site, content, most) -> None:
    async def both(site) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
        return await ask(site, content, max_output_tokens=most), await stream(site, content, max_output_tokens=most)

    body, found = in_site(both)
    kind, last = found[-1]
    assert kind == f"response.{body['status']}"
    assert without_names(last["response"]) == without_names(body)
    # Every item's text again, from its deltas alone, and as its last event tells it.
    deltas: dict[int, str] = {}
    for name, event in found:
        if name.endswith(".delta"):
            deltas[event["output_index"]] = deltas.get(event["output_index"], "") + event["delta"]
        elif name == "response.output_item.done":
            assert event["item"] == last["response"]["output"][event["output_index"]]
    for index, item in enumerate(last["response"]["output"]):
        said = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert deltas.get(index, "") == said


async def test_an_answer_that_is_long_enough_is_incomplete_and_so_is_its_last_item(site, marked) -> None:
    for content, statuses in (("hello", ["incomplete"]), ("ab\3f\4{}\5", ["completed", "incomplete"])):
        most = len(content) - 1
        body = await ask(site, content, max_output_tokens=most)
        assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert [item["status"] for item in body["output"]] == statuses
        found = await stream(site, content, max_output_tokens=most)
        assert found[-1][0] == "response.incomplete"
        assert [event["item"]["status"] for kind, event in found if kind.endswith("item.done")] == statuses


async def test_an_answer_without_a_word_still_has_its_message(site) -> None:
    body = await ask(site, "")
    assert body["output"] == [message(body["output"][0]["id"], "completed", "")]
    found = await stream(site, "")
    assert [kind for kind, _ in found] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_log_probabilities_are_told_with_the_text_and_collected_with_the_answer(site) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    body = await ask(site, "é!", **asked)
    entries = body["output"][0]["content"][0]["logprobs"]
    assert body["top_logprobs"] == 2
    assert len(entries) == body["usage"]["output_tokens"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "é!"
    assert entries[2] == {  # "!" is 33: see the engine
        "token": "!",
        "bytes": [33],
        "logprob": -0.5,
        "top_logprobs": [
            {"token": "!", "bytes": [33], "logprob": -0.5},
            {"token": '"', "bytes": [34], "logprob": -1.0},
        ],
    }
    found = await stream(site, "é!", **asked)
    shown = [event for kind, event in found if kind == "response.output_text.delta"]
    assert [entry for event in shown for entry in event["logprobs"]] == entries
    assert [event["delta"] for event in shown] == ["é", "!", ""]  # the token that ends it has no text


async def test_a_response_with_many_log_probabilities_says_the_same_as_a_small_one(site) -> None:
    site.engine.max_model_len = 10_000
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    small = await ask(site, "abcdefgh", **asked)
    body = await ask(site, "abcdefgh" * 130, **asked)
    entries = body["output"][0]["content"][0]["logprobs"]
    assert len(entries) == 1041
    assert entries[8:16] == entries[1032:1040] == small["output"][0]["content"][0]["logprobs"][:8]


async def test_cached_tokens_are_shown(site) -> None:
    await ask(site, "x" * 40)
    assert (await ask(site, "x" * 40))["usage"]["input_tokens_details"]["cached_tokens"] == 32


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_refusal_of_the_engine_is_a_real_status(site, is_streamed: bool) -> None:
    status, body = await site.post(PATH, {"input": "x" * 600, "stream": is_streamed})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert set(body["error"]) == {"message", "type", "param", "code"}
    site.engine.max_queue = 0
    status, body = await site.post(PATH, {"input": "x", "stream": is_streamed})
    assert (status, body["error"]["code"]) == (429, "queue_full")


@pytest.mark.parametrize(("status", "code"), [(500, "server_error"), (429, "rate_limit_exceeded")])
async def test_a_failure_within_a_stream_is_an_error_and_a_failed_response(site, status: int, code: str) -> None:
    site.engine.hold()
    async with site.session.post(site.url + PATH, json={"input": "abc", "stream": True}) as answer:
        assert answer.status == 200
        await answer.content.readuntil(b"\n\n")
        site.engine.step()
        await answer.content.readuntil(b'"delta":"a"')
        await answer.content.readuntil(b"\n\n")
        site.engine.fail_all(Failure(status, "the executor was lost too often", "executor_gone"))
        rest = await answer.read()
    error, failed = site.named(rest)
    assert error[0] == "error"
    assert (error[1]["message"], error[1]["code"]) == ("the executor was lost too often", "executor_gone")
    assert error[1]["error"]["message"] == "the executor was lost too often"
    response = failed[1]["response"]
    assert (failed[0], response["status"]) == ("response.failed", "failed")
    assert response["error"] == {"code": code, "message": "the executor was lost too often"}
    assert [(item["status"], item["content"][0]["text"]) for item in response["output"]] == [("incomplete", "a")]
    assert failed[1]["sequence_number"] == error[1]["sequence_number"] + 1 == 6
    EVENT.validate_json(json.dumps(failed[1]), strict=True)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_that_leaves_frees_its_request(site, is_streamed: bool) -> None:
    site.engine.hold()
    body = json.dumps({"input": "abc", "stream": is_streamed}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(body)) + body
    )
    await site.engine.until(lambda: len(site.engine.runs) == 1)
    if is_streamed:
        await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()
    await site.engine.until(lambda: not site.engine.runs)
    assert site.engine.cancelled == [1]


async def test_streams_that_end_before_their_headers_are_out_lose_nothing(site) -> None:
    found = await asyncio.gather(*(stream(site, f"number {index}") for index in range(20)))
    for index, events in enumerate(found):
        assert events[-1][1]["response"]["output"][0]["content"][0]["text"] == f"number {index}"


async def test_a_silent_stream_is_kept_alive_by_comments(serve) -> None:
    site = await serve(keep_alive_s=0.01)
    site.engine.hold()
    async with site.session.post(site.url + PATH, json={"input": "a", "stream": True}) as answer:
        for _ in range(2):
            assert (await answer.content.readuntil(b"\n\n")).startswith(b"event: response.")
        assert await answer.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        site.engine.release()
        await answer.read()
