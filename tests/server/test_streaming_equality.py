"""A stream, put together as its clients do, is the answer that the same body gets whole: for every option, in any mix.

The engine repeats the last words, byte by byte or in longer pieces, so what a test says is what its model writes, cut
everywhere; and half of all streams let what they have to say gather, as they do when their loop is behind.

INVARIANT: the whole object is rebuilt from the events alone, and differs from the collected one in ids at most.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncpage.actors.frontend import Sink
from asyncpage.core.sampling import SamplingParams
from asyncpage.messages import Finish, LogprobEntry, Prompt, RequestId, RequestOptions
from asyncpage.server.config import ServerConfig
from asyncpage.server.http_server import HttpServer
from asyncpage.server.pace import Pace
from asyncpage.text.reasoning.think import DeepSeekR1
from asyncpage.text.tools.hermes import Hermes
from asyncpage.text.tools.llama3_json import Llama3Json
from asyncpage.text.tools.mistral import Mistral
from asyncpage.text.tools.pythonic import Pythonic
from asyncpage.text.tools.qwen3_coder import Qwen3Coder
from tests.server.conftest import EchoEngine, Site

Fields = dict[str, Any]
Both = tuple[int, Fields, list[tuple[str, Fields]]]

EXAMPLES = 60

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
PARSERS = [Hermes, Llama3Json, Mistral, Pythonic, Qwen3Coder]

_SPACES = st.sampled_from(["", " ", "\n"])
_WORDS = st.text('ab é\n"\\😀\u2028<END', min_size=1, max_size=8)
_CALL_TEXTS = st.sampled_from(
    [
        '<tool_call>\n{"name": "get", "arguments": {"city": "Zürich"}}\n</tool_call>',
        '<tool_call>{"name": "put", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "get", "argum',
        '{"name": "get", "parameters": {"city": "a\\"b"}}',
        '[TOOL_CALLS] [{"name": "get", "arguments": {"city": "京"}}, {"name": "put", "arguments": {}}]',
        '[get(city="Bern"), put()]',
        "<tool_call>\n<function=get>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>",
        "</tool_call>",
    ]
)
_THOUGHTS = _WORDS.map(lambda text: f"<think>{text}</think>") | st.sampled_from(["<think>", "</think>\n"])
_PIECES = st.lists(_CALL_TEXTS | _CALL_TEXTS | _WORDS | _THOUGHTS | _SPACES, min_size=1, max_size=4).map("".join)
CONTENTS = st.tuples(_THOUGHTS | st.just(""), _PIECES.filter(bool)).map("".join)

STOPS = st.none() | st.lists(st.sampled_from(["END", "a", "é", "</", "\n", '"}', "😀b"]), min_size=1, max_size=2)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Fields]:
    """Any of these fields, each with one of its values."""
    return st.fixed_dictionaries({}, optional=fields)


SAMPLING = {
    "seed": st.integers(0, 9),
    "temperature": st.sampled_from([0, 0.7, 2]),
    "top_p": st.sampled_from([0.5, 1]),
    "skip_special_tokens": st.booleans(),
}
SHARED = {
    "n": st.integers(1, 3),
    "stop": STOPS,
    "include_stop_str_in_output": st.booleans(),
    "return_token_ids": st.booleans(),
    "presence_penalty": st.just(0.5),
    "min_tokens": st.integers(0, 3),
    **SAMPLING,
}
STREAM_OPTIONS = some(include_usage=st.booleans(), continuous_usage_stats=st.booleans())
FORMATS = st.sampled_from(
    [
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        {"structured_outputs": {"regex": "[a-z]+"}},
        {},
    ]
)


def _function(name: str, *, is_strict: bool) -> Fields:
    return {"name": name, "parameters": PARAMETERS, "strict": is_strict}


TOOLS = st.booleans().map(lambda is_strict: [_function(name, is_strict=is_strict) for name in ("get", "put")])
CHAT_TOOLS = st.fixed_dictionaries(
    {"tools": TOOLS.map(lambda tools: [{"type": "function", "function": tool} for tool in tools])},
    optional={
        "tool_choice": st.sampled_from(["none", "auto", "required", {"type": "function", "function": {"name": "get"}}]),
        "parallel_tool_calls": st.booleans(),
    },
)
RESPONSE_TOOLS = st.fixed_dictionaries(
    {"tools": TOOLS.map(lambda tools: [{"type": "function", **tool} for tool in tools])},
    optional={
        "tool_choice": st.sampled_from(["none", "auto", "required", {"type": "function", "name": "get"}]),
        "parallel_tool_calls": st.booleans(),
    },
)
MESSAGE_TOOLS = st.fixed_dictionaries(
    {"tools": st.just([{"name": name, "input_schema": PARAMETERS} for name in ("get", "put")])},
    optional={
        "tool_choice": st.sampled_from(
            [
                {"type": "none"},
                {"type": "auto", "disable_parallel_tool_use": True},
                {"type": "any"},
                {"type": "tool", "name": "get"},
            ]
        )
    },
)


def _merged(*parts: st.SearchStrategy[Fields]) -> st.SearchStrategy[Fields]:
    return st.tuples(*parts).map(lambda found: {name: value for part in found for name, value in part.items()})


TOP = st.none() | st.integers(0, 2)
CHAT = _merged(
    some(
        max_tokens=st.integers(1, 60),
        include_reasoning=st.booleans(),
        **SHARED,
    ),
    TOP.map(lambda top: {} if top is None else {"logprobs": True, "top_logprobs": top}),
    FORMATS,
    CHAT_TOOLS | st.just({}),
)
COMPLETION = _merged(
    some(max_tokens=st.integers(0, 40), echo=st.booleans(), logprobs=st.integers(0, 2), **SHARED),
    FORMATS,
    some(truncate_prompt_tokens=st.integers(1, 20)),
)
RESPONSE = _merged(
    some(
        max_output_tokens=st.integers(1, 60),
        stop=STOPS,
        instructions=st.just("be short"),
        text=st.sampled_from(
            [
                {"format": {"type": "text"}},
                {"format": {"type": "json_object"}},
                {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
            ]
        ),
        **SAMPLING,
    ),
    TOP.map(lambda top: {} if top is None else {"include": ["message.output_text.logprobs"], "top_logprobs": top}),
    RESPONSE_TOOLS | st.just({}),
)
MESSAGE = _merged(
    st.fixed_dictionaries({"max_tokens": st.integers(1, 80)}),
    some(
        stop_sequences=STOPS,
        system=st.just("be short"),
        thinking=st.sampled_from([{"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}]),
        output_config=st.just({"format": {"type": "json_schema", "schema": SCHEMA}}),
        **SAMPLING,
    ),
    MESSAGE_TOOLS | st.just({}),
)
# What the model speaks, whether its streams gather what they have to say, and how many bytes come at once.
MOST = st.sampled_from([1, 1, 3, 7, 20, 200])
MODELS = st.tuples(
    st.sampled_from([Hermes, *PARSERS]), st.sampled_from([True, True, False]), st.booleans(), st.booleans(), MOST
)


class Gathered:
    """A sink that passes on the text of some tokens at once, as of long tokens."""

    def __init__(self, sink: Sink, most: int) -> None:
        self._sink = sink
        self._most = most
        self._texts: dict[RequestId, list[tuple[str, Sequence[int], Sequence[LogprobEntry] | None]]] = {}

    def text(self, request: RequestId, text: str, ids: Sequence[int], entries: Sequence[LogprobEntry] | None) -> None:
        held = self._texts.setdefault(request, [])
        held.append((text, ids, entries))
        if len(held) >= self._most:
            self._pass_on(request)

    def finished(self, finish: Finish) -> None:
        self._pass_on(finish.request)
        self._sink.finished(finish)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def _pass_on(self, request: RequestId) -> None:
        held = self._texts.pop(request, [])
        if held:
            texts, ids, entries = zip(*held, strict=True)
            said = None if all(each is None for each in entries) else list(chain.from_iterable(filter(None, entries)))
            self._sink.text(request, "".join(texts), list(chain.from_iterable(ids)), said)


class Engine(EchoEngine):
    """`most`: tokens whose text comes at once."""

    most = 1

    def submit(self, prompt: Prompt, sampling: SamplingParams, options: RequestOptions, sink: Sink) -> RequestId:
        gathered: Any = Gathered(sink, self.most)
        return super().submit(prompt, sampling, options, gathered)


class Pair:
    """A server whose answers are asked for twice, whole and streamed, on a loop of its own."""

    def __init__(self, runner: asyncio.Runner, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self._runner = runner
        self._site = site
        self._monkeypatch = monkeypatch

    def ask(self, path: str, body: Fields, model: Any) -> Both | None:
        """Status, whole answer and events; None where both are refused, alike."""
        parser, thinks, is_open, gathers, most = model
        engine = self._site.engine
        assert isinstance(engine, Engine)
        engine.most = most
        engine.tool_parser = parser("")
        engine.reasoning_parser = DeepSeekR1("") if thinks else None
        engine.end_of_prompt = "<think>\n" if is_open else ""
        with self._monkeypatch.context() as patch:
            if gathers:
                patch.setattr(Pace, "wrote", lambda pace: setattr(pace, "is_lagging", True))
            return self._runner.run(self._ask(path, body))

    async def _ask(self, path: str, body: Fields) -> Both | None:
        streamed = {**body, "stream": True}
        whole = {name: value for name, value in body.items() if name != "stream_options"}
        engine = self._site.engine
        await engine.reset_prefix_cache()  # or the second would find what the first computed
        status, answer = await self._site.post(path, whole)
        await engine.reset_prefix_cache()
        async with self._site.session.post(self._site.url + path, json=streamed) as response:
            text = await response.read()
            if status != 200 or response.status != 200:
                assert (response.status, without_ids(json.loads(text))) == (status, without_ids(answer))
                return None
        assert not engine.runs
        return status, answer, list(_events(text.decode("ascii")))


def _events(text: str) -> Iterator[tuple[str, Fields]]:
    *events, last = text.split("\n\n")
    assert last == ""
    for event in events:
        name, found, data = event.partition("data: ")
        assert found
        assert "\n" not in data
        if data != "[DONE]":
            yield name.removeprefix("event: ").strip(), json.loads(data)
    assert ("data: [DONE]" in events) == (not events[0].startswith("event: "))


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as monkeypatch:

        async def start() -> Site:
            engine = Engine()
            engine.max_model_len = 1024
            server = HttpServer(engine, ServerConfig(port=0, log_requests=False))
            await server.start()
            return Site(engine, server, aiohttp.ClientSession())

        async def stop() -> None:
            await site.session.close()
            await site.server.stop()

        site = runner.run(start())
        yield Pair(runner, site, monkeypatch)
        runner.run(stop())


def without_ids(answer: Any) -> Any:
    """What is made anew for every answer tells nothing."""
    text = re.sub(r"\b(chatcmpl-|cmpl-|req-|(?:resp|msg|rs|fc|call|toolu)_)[0-9a-f]{32}", r"\1", json.dumps(answer))
    return json.loads(text)


def check(answer: Fields, joined: Fields) -> None:
    assert without_ids(joined) == without_ids(answer)


def property_of(bodies: st.SearchStrategy[Fields]) -> Callable[..., Any]:
    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        return settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))(
            given(body=bodies, content=CONTENTS, options=STREAM_OPTIONS, model=MODELS)(test)
        )

    return decorate


# --- chat completions ------------------------------------------------------------------------------------------------


@property_of(CHAT)
def test_a_chat_streamed_is_the_chat_whole(pair: Pair, body, content, options, model) -> None:
    asked = {"messages": [{"role": "user", "content": content}], "stream_options": options, **body}
    found = pair.ask("/v1/chat/completions", asked, model)
    if found is not None:
        _, answer, events = found
        check(answer, joined_chat(answer, [chunk for _, chunk in events], body, options))


def joined_chat(answer: Fields, chunks: list[Fields], body: Fields, options: Fields) -> Fields:
    """The whole answer, rebuilt; of `answer`, only what no stream tells is taken."""
    choices: dict[int, Fields] = {}
    for chunk in chunks:
        for piece in chunk["choices"]:
            _add_chat(choices, piece, body)
    for choice in choices.values():
        message = choice["message"]
        if "tool_calls" in message:
            message["content"] = message["content"] or None
    return _headed(chunks, "chat.completion", choices, answer, options)


def _add_chat(choices: dict[int, Fields], piece: Fields, body: Fields) -> None:
    index, delta = piece["index"], piece["delta"]
    if index not in choices:
        assert delta == {"role": "assistant", "content": ""}
        choices[index] = {
            "index": index,
            "message": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": {"content": [], "refusal": None} if body.get("logprobs") else None,
            "finish_reason": None,
            "stop_reason": None,
            **({"token_ids": []} if body.get("return_token_ids") else {}),
        }
        return
    choice = choices[index]
    message = choice["message"]
    assert choice["finish_reason"] is None
    assert "role" not in delta
    message["content"] += delta.get("content", "")
    if "reasoning_content" in delta:
        message["reasoning_content"] = message.get("reasoning_content", "") + delta["reasoning_content"]
    for part in delta.get("tool_calls", []):
        calls = message.setdefault("tool_calls", [])
        if "id" in part:
            assert part["index"] == len(calls)
            calls.append({"id": part["id"], "type": part["type"], "function": dict(part["function"])})
        else:
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    if piece["logprobs"] is not None:
        choice["logprobs"]["content"] += piece["logprobs"]["content"]
    if "token_ids" in piece:
        choice["token_ids"] += piece["token_ids"]
    choice["finish_reason"] = piece["finish_reason"]
    choice["stop_reason"] = piece.get("stop_reason")


def _headed(chunks: list[Fields], kind: str, choices: dict[int, Fields], answer: Fields, options: Fields) -> Fields:
    """Head with the prompt's ids, choices in their order, and the usage of the last chunk, where it was asked for."""
    heads = [{name: chunk[name] for name in chunk if name not in ("choices", "usage")} for chunk in chunks]
    later = {name: value for name, value in heads[0].items() if name != "prompt_token_ids"}  # which is told once
    assert all(head == later for head in heads[1:])
    assert heads[0]["object"] == {"chat.completion": "chat.completion.chunk"}.get(kind, kind)
    usage = answer["usage"]
    if options.get("include_usage"):
        assert chunks[-1]["choices"] == []
        usage = chunks[-1]["usage"]
        assert all((chunk["usage"] is not None) == bool(options.get("continuous_usage_stats")) for chunk in chunks[:-1])
    else:
        assert all("usage" not in chunk for chunk in chunks)
    return {**heads[0], "object": kind, "choices": [choices[index] for index in sorted(choices)], "usage": usage}


# --- text completions ------------------------------------------------------------------------------------------------

PROMPTS = st.lists(CONTENTS, min_size=1, max_size=2).map(lambda texts: texts[0] if len(texts) == 1 else texts)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    body=COMPLETION,
    prompt=PROMPTS | st.lists(st.integers(0, 255), min_size=1, max_size=20),
    options=STREAM_OPTIONS,
    gathers=st.booleans(),
    most=MOST,
)
def test_a_completion_streamed_is_the_completion_whole(pair: Pair, body, prompt, options, gathers, most) -> None:
    asked = {"prompt": prompt, "stream_options": options, **body}
    found = pair.ask("/v1/completions", asked, (Hermes, True, False, gathers, most))
    if found is not None:
        _, answer, events = found
        check(answer, joined_completion(answer, [chunk for _, chunk in events], body, options))


def joined_completion(answer: Fields, chunks: list[Fields], body: Fields, options: Fields) -> Fields:
    choices: dict[int, Fields] = {}
    lists = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    for chunk in chunks:
        for piece in chunk["choices"]:
            fresh = {
                "index": piece["index"],
                "text": "",
                "logprobs": None if body.get("logprobs") is None else {name: [] for name in lists},
                "finish_reason": None,
                "stop_reason": None,
                **({"token_ids": []} if body.get("return_token_ids") else {}),
            }
            choice = choices.setdefault(piece["index"], fresh)
            assert choice["finish_reason"] is None
            choice["text"] += piece["text"]
            for name in lists if piece["logprobs"] is not None else ():
                choice["logprobs"][name] += piece["logprobs"][name]
            if "token_ids" in piece:
                choice["token_ids"] += piece["token_ids"]
            if "prompt_token_ids" in piece:
                assert "prompt_token_ids" not in choice
                choice["prompt_token_ids"] = piece["prompt_token_ids"]
            choice["finish_reason"], choice["stop_reason"] = piece["finish_reason"], piece.get("stop_reason")
    return _headed(chunks, "text_completion", choices, answer, options)


# --- responses -------------------------------------------------------------------------------------------------------


@property_of(RESPONSE)
def test_a_response_streamed_is_the_response_whole(pair: Pair, body, content, options, model) -> None:
    found = pair.ask("/v1/responses", {"input": content, **body}, model)
    if found is None:
        return
    _, answer, events = found
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    kind, last = events[-1]
    assert kind == f"response.{answer['status']}"
    check(_silent(answer), last["response"])
    check(answer, {**last["response"], "output": list(joined_items(events))})


def _silent(answer: Fields) -> Fields:
    """Without log-probabilities: a stream tells them with the text, and not again at its end."""
    silent: Fields = json.loads(json.dumps(answer))
    for item in silent["output"]:
        for part in item.get("content", []):
            if "logprobs" in part:
                part["logprobs"] = []
    return silent


def joined_items(events: list[tuple[str, Fields]]) -> Iterator[Fields]:
    """The output from its deltas; what an item's last event says is but its status."""
    texts: dict[int, str] = {}
    logprobs: dict[int, list[Fields]] = {}
    items: dict[int, Fields] = {}
    for kind, event in events:
        index = event.get("output_index", -1)
        if kind == "response.output_item.added":
            assert index == len(items)
            items[index], texts[index], logprobs[index] = event["item"], "", []
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[index]["id"]
            texts[index] += event["delta"]
            logprobs[index] += event.get("logprobs", [])
        elif kind == "response.output_item.done":
            items[index] = {**items[index], "status": event["item"]["status"]}
    for index, item in items.items():
        match item["type"]:
            case "function_call":
                yield {**item, "arguments": texts[index]}
            case "reasoning":
                yield {**item, "content": [{"type": "reasoning_text", "text": texts[index]}]}
            case _:
                part = {"type": "output_text", "text": texts[index], "annotations": []}
                yield {**item, "content": [{**part, "logprobs": logprobs[index]}]}


# --- messages --------------------------------------------------------------------------------------------------------


@property_of(MESSAGE)
def test_a_message_streamed_is_the_message_whole(pair: Pair, body, content, options, model) -> None:
    found = pair.ask("/v1/messages", {"messages": [{"role": "user", "content": content}], **body}, model)
    if found is not None:
        check(found[1], joined_message([event for _, event in found[2]]))


def joined_message(events: list[Fields]) -> Fields:
    message: Fields = {}
    arguments: dict[int, str] = {}
    open_block = None
    for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert (event["index"], open_block) == (len(message["content"]), None)
                open_block = event["index"]
                message["content"].append(event["content_block"])
            case "content_block_delta":
                assert event["index"] == open_block
                block, delta = message["content"][open_block], event["delta"]
                name = {"text_delta": "text", "thinking_delta": "thinking"}.get(delta["type"])
                if name is None:
                    arguments[open_block] = arguments.get(open_block, "") + delta["partial_json"]
                else:
                    block[name] += delta[name]
            case "content_block_stop":
                assert event["index"] == open_block
                open_block = None
            case "message_delta":
                message = {**message, **event["delta"], "usage": event["usage"]}
    assert events[-1] == {"type": "message_stop"}
    for index, text in arguments.items():
        try:
            found = json.loads(text)
        except json.JSONDecodeError:  # it was cut off
            continue
        message["content"][index]["input"] = found if isinstance(found, dict) else {}
    return message
