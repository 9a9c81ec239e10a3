"""Generation over HTTP: streamed and collected answers, their shapes, and how calls end."""

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from asyncpage.errors import Failure
from asyncpage.messages import Constraint
from asyncpage.server.generate.chunk_writer import ChunkWriter
from asyncpage.server.generate.collector import Collector

EMOJI = 'A😀ďB\u2028\u0085 "\\\n漢'


def joined(found: list[dict[str, Any]], index: int = 0) -> str:
    pieces = [choice for chunk in found for choice in chunk["choices"] if choice["index"] == index]
    return "".join(piece["delta"].get("content", "") if "delta" in piece else piece["text"] for piece in pieces)


async def test_a_chat_answer_has_the_published_shape(site) -> None:
    body = await site.chat("héllo", model="org/alias", metadata={"a": "b"})
    prompt_tokens = len("user: héllo\n".encode())
    completion_tokens = len("héllo".encode()) + 1
    assert re.fullmatch("chatcmpl-[0-9a-f]{32}", body.pop("id"))
    assert body == {
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "org/alias",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "héllo", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
        },
        "system_fingerprint": "fp_echo",
    }


async def test_a_completion_has_the_published_shape(site) -> None:
    body = await site.complete(prompt="abc", max_tokens=2)
    assert re.fullmatch("cmpl-[0-9a-f]{32}", body["id"])
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "ab", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]


async def test_a_chat_stream_begins_with_the_role_and_ends_with_the_reason(site) -> None:
    found = await site.stream("/v1/chat/completions", messages=[{"role": "user", "content": "hey"}])
    assert {(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in found} == {
        (found[0]["id"], 1_700_000_000, "echo", "chat.completion.chunk")
    }
    deltas = [chunk["choices"][0]["delta"] for chunk in found]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "h"},
        {"content": "e"},
        {"content": "y"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in found] == [None, None, None, None, "stop"]
    assert all("usage" not in chunk for chunk in found)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_joined_is_the_collected_answer(site, path: str) -> None:
    chat = path.endswith("chat/completions")
    asked = {"messages": [{"role": "user", "content": EMOJI}]} if chat else {"prompt": EMOJI, "max_tokens": 60}
    found = await site.stream(path, **asked)
    status, body = await site.post(path, asked)
    assert status == 200
    choice = body["choices"][0]
    assert joined(found) == (choice["message"]["content"] if chat else choice["text"]) == EMOJI
    assert "�" not in joined(found)


async def test_choices_interleave_by_index_and_each_ends_once(site) -> None:
    asked = {"messages": [{"role": "user", "content": "abcdef"}], "n": 3, "seed": 7}
    found = await site.stream("/v1/chat/completions", **asked)
    choices = [choice for chunk in found for choice in chunk["choices"]]
    collected = await site.chat("abcdef", n=3, seed=7)
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]
        assert joined(found, index) == collected["choices"][index]["message"]["content"]
    assert [choice["message"]["content"] for choice in collected["choices"]] == ["abcdef", "bcdefa", "cdefab"]
    assert [choice["index"] for choice in choices[:6]] == [0, 0, 1, 1, 2, 2]
    assert collected["usage"]["prompt_tokens"] == len("user: abcdef\n")
    assert collected["usage"]["completion_tokens"] == 3 * 7


async def test_the_index_of_a_choice_is_prompt_times_n_plus_choice(site) -> None:
    body = await site.complete(prompt=["abc", "xyz"], n=2)
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "abc"),
        (1, "bca"),
        (2, "xyz"),
        (3, "yzx"),
    ]
    assert body["usage"]["prompt_tokens"] == 6
    found = await site.stream("/v1/completions", prompt=[[97, 98], [120]], n=2)
    assert [joined(found, index) for index in range(4)] == ["ab", "ba", "x", "x"]


async def test_the_most_likely_of_several_choices_are_shown_and_all_are_billed(site) -> None:
    # The choices are the prompt turned left by 0 to 3 bytes, cut after two: "hd", "dc", "cb" and "bh". A byte b has
    # the logprob -(1 + b % 4) / 4, so their means are -0.25, -0.625, -0.875 and -0.5.
    asked = {"prompt": "hdcb", "max_tokens": 2, "n": 2, "best_of": 4}
    body = await site.complete(**asked)
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, "hd"), (1, "bh")]
    assert body["choices"][0]["logprobs"] is None
    assert body["usage"]["completion_tokens"] == 8
    reverse = await site.complete(**{**asked, "prompt": ["bcdh", "hdcb"], "n": 1, "logprobs": 1})
    assert [(choice["index"], choice["text"]) for choice in reverse["choices"]] == [(0, "dh"), (1, "hd")]
    assert reverse["choices"][0]["logprobs"]["token_logprobs"] == [-0.25, -0.25]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_every_chunk_and_answer_tells_what_computed_it(site, path: str) -> None:
    asked = {"prompt": "ab"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "ab"}]}
    found = await site.stream(path, **asked)
    assert {chunk["system_fingerprint"] for chunk in found} == {"fp_echo"}
    assert (await site.post(path, asked))[1]["system_fingerprint"] == "fp_echo"


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"continuous_usage_stats": True}])
async def test_usage_is_not_sent_unless_asked(site, options: Any) -> None:
    found = await site.stream("/v1/completions", prompt="hello", stream_options=options)
    assert all("usage" not in chunk for chunk in found)
    assert all(len(chunk["choices"]) == 1 for chunk in found)


@pytest.mark.parametrize("is_continuous", [False, True])
async def test_usage_comes_in_one_last_chunk_without_choices(site, is_continuous: bool) -> None:
    options = {"include_usage": True, "continuous_usage_stats": is_continuous}
    found = await site.stream("/v1/completions", prompt="hello", max_tokens=4, stream_options=options)
    *others, last = found
    assert last["choices"] == []
    assert last["usage"] == (await site.complete(prompt="hello", max_tokens=4))["usage"]
    if is_continuous:
        assert [chunk["usage"]["completion_tokens"] for chunk in others] == [1, 2, 3, 4, 4]
        assert {chunk["usage"]["prompt_tokens"] for chunk in others} == {5}
    else:
        assert [chunk["usage"] for chunk in others] == [None] * 5


async def test_cached_tokens_are_shown_in_usage(site) -> None:
    prompt = "x" * 40
    await site.complete(prompt=prompt, max_tokens=1)
    body = await site.complete(prompt=prompt, max_tokens=1, n=2)
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}


async def test_a_stop_string_is_told(site) -> None:
    body = await site.complete(prompt="one two", stop=[" tw"])
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("one", "stop", " tw")
    found = await site.stream("/v1/completions", prompt="abcdef", stop="e")
    assert found[-1]["choices"][0]["stop_reason"] == "e"


async def test_an_echoed_prompt_comes_with_its_logprobs_first(site) -> None:
    asked = {"prompt": "ab", "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    choice = (await site.complete(**asked))["choices"][0]
    assert choice["text"] == "aba"
    assert choice["logprobs"] == {
        "tokens": ["a", "b", "a"],
        "token_logprobs": [None, -0.75, -0.5],
        "top_logprobs": [None, {"b": -0.75}, {"a": -0.5}],
        "text_offset": [0, 1, 2],
    }
    found = await site.stream("/v1/completions", **asked)
    assert joined(found) == "aba"
    shown = [chunk["choices"][0]["logprobs"] for chunk in found if chunk["choices"][0]["logprobs"]]
    for column in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for part in shown for value in part[column]] == choice["logprobs"][column]


async def test_a_long_prompts_logprobs_are_streamed_part_by_part_before_its_text(site) -> None:
    site.engine.hold()
    asked = {"prompt": "abcdef", "echo": True, "logprobs": 1, "max_tokens": 1, "n": 2}
    streaming = asyncio.ensure_future(site.stream("/v1/completions", **asked))
    await site.engine.until(lambda: len(site.engine.runs) == 2)
    for run in site.engine.runs.values():
        run.sink.prompt_logprobs(run.request, [(97, None, 0), (98, -1.0, 1, 98, -1.0)])
        run.sink.prompt_logprobs(run.request, [(99, -2.0, 1, 99, -2.0)])
        run.sampling = replace(run.sampling, prompt_logprobs=None)  # these were all that there are
    site.engine.release()
    found = await streaming
    for index in range(2):
        own = [chunk["choices"][0] for chunk in found if chunk["choices"][0]["index"] == index]
        assert [(choice["text"], (choice["logprobs"] or {}).get("tokens")) for choice in own] == [
            ("", ["a", "b"]),
            ("", ["c"]),
            ("abcdef", None),
            ("abcdef"[index], ["abcdef"[index]]),
            ("", None),
        ]
        offsets = [offset for choice in own if choice["logprobs"] for offset in choice["logprobs"]["text_offset"]]
        assert offsets == [0, 1, 2, 3]


@pytest.mark.parametrize("stream", [False, True])
async def test_no_token_may_be_asked_for_of_completions(site, stream: bool) -> None:
    asked = {"prompt": "ab", "max_tokens": 0, "echo": True, "logprobs": 0}
    if stream:
        found = await site.stream("/v1/completions", **asked)
        shown = [chunk["choices"][0]["logprobs"] for chunk in found if chunk["choices"][0]["logprobs"]]
        assert joined(found) == "ab"
        assert [part["token_logprobs"] for part in shown] == [[None, -0.75]]
        assert found[-1]["choices"][0]["finish_reason"] == "length"
    else:
        body = await site.complete(**asked)
        assert body["choices"][0]["text"] == "ab"
        assert body["choices"][0]["logprobs"]["token_logprobs"] == [None, -0.75]
        assert body["usage"]["completion_tokens"] == 0
        assert (await site.complete(prompt="ab", max_tokens=0))["choices"][0]["text"] == ""


async def test_chat_logprobs_streamed_are_those_collected(site) -> None:
    content = "é!"
    body = await site.chat(content, logprobs=True, top_logprobs=2)
    entries = body["choices"][0]["logprobs"]["content"]
    assert len(entries) == body["usage"]["completion_tokens"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == content
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    found = await site.stream(
        "/v1/chat/completions", messages=[{"role": "user", "content": content}], logprobs=True, top_logprobs=2
    )
    shown = [chunk["choices"][0]["logprobs"] for chunk in found if chunk["choices"][0]["logprobs"]]
    assert [entry for part in shown for entry in part["content"]] == entries
    assert joined(found) == content


@pytest.mark.parametrize(("keep", "shown"), [(None, [104, 195, 169]), (2, [195, 169])])
async def test_the_ids_of_a_text_prompt_are_shown_as_they_ran(site, keep: int | None, shown: list[int]) -> None:
    for prompt in ("h\u00e9", [104, 195, 169]):
        body = await site.complete(prompt=prompt, return_token_ids=True, truncate_prompt_tokens=keep, max_tokens=1)
        assert body["choices"][0]["prompt_token_ids"] == shown
        assert body["usage"]["prompt_tokens"] == len(shown)
    chat = await site.chat("h\u00e9", return_token_ids=True, max_tokens=1)
    assert bytes(chat["prompt_token_ids"]).decode() == "user: h\u00e9\n"


async def test_token_ids_and_prompt_logprobs_are_shown_when_asked(site) -> None:
    choice = (await site.complete(prompt=[97, 98], return_token_ids=True, prompt_logprobs=1))["choices"][0]
    assert choice["token_ids"] == [97, 98, 256]
    assert choice["prompt_token_ids"] == [97, 98]
    assert choice["prompt_logprobs"] == [None, {"98": {"logprob": -0.75, "rank": 1, "decoded_token": "b"}}]
    chat = await site.chat("ab", return_token_ids=True, prompt_logprobs=0)
    assert chat["choices"][0]["token_ids"] == [*b"user: ab\n", 256]  # the fake says all of a prompt that came as ids
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    found = await site.stream("/v1/completions", prompt="ab", return_token_ids=True)
    assert [chunk["choices"][0].get("token_ids") for chunk in found] == [None, [97], [98], [256], None]


async def test_a_stream_tells_the_ids_of_each_prompt_once_before_its_answer(site) -> None:
    found = await site.stream("/v1/completions", prompt=["ab", "c"], n=2, return_token_ids=True)
    told = [(one["index"], one["prompt_token_ids"]) for one in map(first_choice, found) if "prompt_token_ids" in one]
    assert sorted(told) == [(0, [97, 98]), (1, [97, 98]), (2, [99]), (3, [99])]
    firsts = {one["index"]: one for one in map(first_choice, reversed(found))}
    assert all("prompt_token_ids" in one for one in firsts.values())
    messages = [{"role": "user", "content": "ab"}]
    chat = await site.stream("/v1/chat/completions", messages=messages, n=2, return_token_ids=True)
    assert [chunk.get("prompt_token_ids") for chunk in chat] == [[*b"user: ab\n"], *[None] * (len(chat) - 1)]
    plain = await site.stream("/v1/completions", prompt="ab")
    assert "prompt_token_ids" not in json.dumps(plain)


def first_choice(chunk: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = chunk["choices"][0]
    return choice


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_of_the_engine_is_a_real_status(site, stream: bool) -> None:
    status, body = await site.post("/v1/completions", {"prompt": "x" * 600, "stream": stream})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert set(body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_is_named_and_says_when_to_come_back(site, stream: bool) -> None:
    site.engine.max_queue = 3
    site.engine.hold()
    data = json.dumps({"prompt": ["a", "b"], "n": 2, "stream": stream})
    async with site.session.post(site.url + "/v1/completions", data=data) as answer:
        body = await answer.json()
        assert (answer.status, answer.headers["Retry-After"]) == (429, "3")
    assert body["error"]["code"] == "queue_full"
    assert "scheduler" in body["error"]["message"]
    assert body["error"]["type"] == "rate_limit_error"
    # All or nothing: the prompt that found room has given it back.
    assert not site.engine.runs
    assert len(site.engine.cancelled) == 2


async def test_more_choices_than_the_engine_ever_holds_are_told_at_once_and_not_to_come_back(site) -> None:
    site.engine.max_requests = 5
    for asked in ({"prompt": ["a"] * 6}, {"prompt": ["a", "b"], "n": 3}, {"prompt": "a", "n": 6}):
        status, body = await site.post("/v1/completions", asked)
        assert status == 400, body
        assert body["error"]["param"] in asked
    assert not site.engine.submitted
    assert len((await site.complete(prompt=["a"] * 5))["choices"]) == 5


async def test_a_failure_before_the_answer_is_an_error_status(site) -> None:
    site.engine.hold()
    asking = asyncio.create_task(site.post("/v1/completions", {"prompt": ["a", "b"]}))
    await site.engine.until(lambda: len(site.engine.runs) == 2)
    first = next(iter(site.engine.runs.values()))
    site.engine._finish(first, "error", failure=Failure(500, "the step failed twice", "poison"))
    status, body = await asking
    assert (status, body["error"]["code"], body["error"]["type"]) == (500, "poison", "server_error")
    assert len(site.engine.cancelled) == 1


async def test_a_failure_within_a_stream_is_an_error_event_then_the_end(site) -> None:
    site.engine.hold()
    async with site.session.post(site.url + "/v1/completions", json={"prompt": "abc", "stream": True}) as answer:
        assert answer.status == 200
        site.engine.step()
        await answer.content.readuntil(b"\n\n")
        site.engine.fail_all(Failure(500, "the executor was lost too often", "executor_gone"))
        rest = await answer.read()
    event, done, _ = rest.split(b"\n\n")
    assert json.loads(event.removeprefix(b"data: ")) == {
        "error": {
            "message": "the executor was lost too often",
            "type": "server_error",
            "param": None,
            "code": "executor_gone",
        }
    }
    assert done == b"data: [DONE]"


async def test_a_fault_of_ours_within_a_stream_is_told_in_it_and_frees_the_request(site, monkeypatch) -> None:
    def broken(self) -> None:
        raise LookupError("inner detail")

    site.engine.hold()
    monkeypatch.setattr(ChunkWriter, "flush", broken)
    async with site.session.post(site.url + "/v1/completions", json={"prompt": "abc", "stream": True}) as answer:
        body = await answer.read()
    assert b'"code":"internal_error"' in body
    assert body.endswith(b"data: [DONE]\n\n")
    assert b"inner detail" not in body
    assert len(site.engine.cancelled) == 1


async def test_a_deadline_is_a_504(site) -> None:
    site.engine.hold()
    status, body = await site.post("/v1/completions", {"prompt": "a", "timeout": 0.01})
    assert (status, body["error"]["code"], body["error"]["type"]) == (504, "timeout", "timeout_error")
    assert not site.engine.runs


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_client_that_leaves_frees_every_choice(site, stream: bool, is_begun: bool) -> None:
    site.engine.hold()
    body = json.dumps({"prompt": ["a", "b", "c"], "n": 4, "stream": stream}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await site.engine.until(lambda: len(site.engine.runs) == 12)
    if is_begun:
        site.engine.step()
    if stream:
        await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()
    await site.engine.until(lambda: not site.engine.runs)
    assert sorted(site.engine.cancelled) == list(range(1, 13))


async def test_text_that_comes_before_the_headers_are_out_is_not_lost(site) -> None:
    # The fake accepts, computes everything and finishes while the handler still sends its headers.
    asked = [site.stream("/v1/completions", prompt=f"number {index}") for index in range(20)]
    for index, found in enumerate(await asyncio.gather(*asked)):
        assert joined(found) == f"number {index}"


async def test_one_line_is_logged_for_a_call_and_it_has_neither_prompt_nor_output(site) -> None:
    with capture_logs() as lines:
        body = await site.complete(prompt="a secret prompt")
        await site.post("/v1/completions", {"prompt": "another secret", "timeout": 0.001, "max_tokens": 10**6})
    finished = [line for line in lines if line["event"] == "request.finished"]
    assert len(finished) == 2
    assert finished[0]["id"] == body["id"]
    assert (finished[0]["outcome"], finished[0]["status"]) == ("stop", 200)
    assert (finished[0]["prompt_tokens"], finished[0]["completion_tokens"]) == (15, 16)
    assert "secret" not in json.dumps(lines, default=str)


async def test_a_fault_in_making_the_answer_is_told_and_counted_as_ours(site, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("an answer that cannot be made")

    monkeypatch.setattr(Collector, "_body", broken)
    with capture_logs() as lines:
        status, body = await site.post("/v1/completions", {"prompt": "a"})
    assert (status, body["error"]["code"]) == (500, "internal_error")
    (finished,) = [line for line in lines if line["event"] == "request.finished"]
    assert (finished["outcome"], finished["status"]) == ("internal_error", 500)


async def test_an_answer_with_many_logprobs_says_the_same_as_a_small_one(site) -> None:
    site.engine.max_model_len = 10_000
    text = "abcdefgh" * 200  # beyond 1,000 tokens an answer is written in another way
    body = await site.complete(prompt=text, echo=True, logprobs=2, max_tokens=0)
    small = await site.complete(prompt=text[:8], echo=True, logprobs=2, max_tokens=0)
    found, expected = body["choices"][0]["logprobs"], small["choices"][0]["logprobs"]
    assert body["choices"][0]["text"] == text
    assert found["text_offset"] == list(range(1600))
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert found[name][:8] == expected[name]
        assert found[name][8:16] == found[name][1592:]


async def test_the_line_can_be_turned_off(serve) -> None:
    site = await serve(log_requests=False)
    with capture_logs() as lines:
        await site.complete(prompt="a")
    assert not [line for line in lines if line["event"] == "request.finished"]


async def test_ids_are_unique_and_the_engine_is_told_them(site) -> None:
    bodies = await asyncio.gather(*(site.complete(prompt="a", max_tokens=1) for _ in range(20)))
    ids = {body["id"] for body in bodies}
    assert len(ids) == 20
    assert {options.label for _, _, options in site.engine.submitted} == ids


@pytest.mark.parametrize("state", ["loading", "restarting", "draining", "dead"])
async def test_no_call_is_taken_in_any_other_state_than_ready(site, state: str) -> None:
    site.engine.state = state
    async with site.session.post(site.url + "/v1/completions", json={"prompt": "a"}) as answer:
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert (await answer.json())["error"]["code"] == state
    assert not site.engine.submitted


# --- structured output -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_what_an_answer_must_follow_is_compiled_and_goes_to_the_engine(site, path: str, stream: bool) -> None:
    asked = {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    await site.complete(prompt="a")
    fields = {**asked, "structured_outputs": {"regex": "a+"}}
    if stream:
        await site.stream(path, **fields)
    else:
        assert (await site.post(path, fields))[0] == 200
    assert [options.constraint for _, _, options in site.engine.submitted] == [None, Constraint(b"regex", b"a+")]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_that_is_refused_is_a_status_also_for_a_stream(site, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "stream": stream, "guided_regex": "refused"}
    status, answer = await site.post("/v1/chat/completions", body)
    assert status == 400
    assert answer["error"]["param"] == "guided_regex.properties.a"
    assert answer["error"]["code"] == "unsupported"
    assert site.engine.submitted == []


async def test_a_client_that_leaves_while_its_grammar_is_compiled_leaves_nothing(site) -> None:
    body = {"prompt": "a", "guided_regex": "for ever"}
    asking = asyncio.ensure_future(site.post("/v1/completions", body))
    await site.engine.until(lambda: site.engine.compiling)
    asking.cancel()
    await site.engine.until(lambda: not site.engine.compiling)
    assert site.engine.submitted == []
