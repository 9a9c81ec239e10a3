"""The Responses API's body: what clients send is understood or refused, and what is repeated is what is done."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response

from asyncpage.errors import Failure, RequestError
from asyncpage.grammar.source import GrammarSource
from asyncpage.server.call import Call
from asyncpage.server.json_body import parse_object
from asyncpage.server.responses.body import read_response

OPTIONAL = (
    "model instructions max_output_tokens temperature top_p tools tool_choice parallel_tool_calls text "
    "stream previous_response_id conversation store include metadata reasoning truncation background user "
    "prompt safety_identifier prompt_cache_key service_tier max_tool_calls top_logprobs stream_options "
    "moderation context_management n stop seed messages max_tokens response_format logprobs"
)
WEATHER = {"type": "function", "name": "weather", "description": "d", "parameters": {"type": "object"}, "strict": True}


@pytest.fixture(scope="session")
def read(make_setting):
    def reads(body: dict[str, Any] | str, **changes: Any) -> Call:
        raw = body if isinstance(body, str) else json.dumps(body)
        return read_response(parse_object(raw.encode()), make_setting(**changes))

    return reads


@pytest.fixture(scope="session")
def refusal(read):
    def refused(fields: dict[str, Any], **changes: Any) -> Failure:
        with pytest.raises(RequestError) as caught:
            read({"input": "hi", **fields}, **changes)
        return caught.value.failure

    return refused


def test_fields_reach_the_call(read) -> None:
    call = read(
        {
            "model": "alias",
            "input": "hi",
            "instructions": "be brief",
            "max_output_tokens": 7,
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 3,
            "stream": True,
            "priority": 2,
            "chat_template_kwargs": {"enable_thinking": False},
            "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
            "top_logprobs": 4,
            "new_field": 1,
        }
    )
    (prompt,) = call.prompts
    assert prompt.messages == ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"})
    assert (prompt.add_generation_prompt, prompt.kwargs) == (True, {"enable_thinking": False})
    sampling = call.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.seed) == (7, 0.5, 0.9, 3)
    assert (sampling.logprobs, call.output.logprobs) == (4, 4)
    assert (call.model, call.output.stream, call.options.priority) == ("alias", True, 2)
    assert call.ignored == ("new_field",)


def test_unknown_fields_of_the_objects_inside_are_told(read) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "x": 1}
    said = {"type": "output_text", "text": "a", "annotations": [], "logprobs": [], "x": 1}
    item = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [said], "x": 1}
    call = read(
        {
            "input": [item],
            "tools": [tool],
            "text": {"verbosity": "low", "x": 1},
            "reasoning": {"x": 1},
            "tool_choice": "none",
        }
    )
    assert sorted(call.ignored) == ["input.0.content.0.x", "input.0.x", "reasoning.x", "text.x", "tools.0.x"]


def test_null_means_not_given_for_every_optional_field(read) -> None:
    optional = OPTIONAL.split()
    call = read({"input": "hi", **dict.fromkeys(optional)})
    assert call == read({"input": "hi"})
    assert call.ignored == ()


def test_fields_without_an_effect_are_taken(read) -> None:
    call = read(
        {
            "input": "hi",
            "store": True,
            "background": False,
            "user": "u",
            "service_tier": "auto",
            "reasoning": {"effort": "low", "summary": "auto"},
            "stream_options": {"include_obfuscation": False},
            "truncation": "disabled",
            "include": ["file_search_call.results"],
            "text": {"format": {"type": "text"}, "verbosity": "low"},
            "metadata": {"a": "b"},
            "tools": [],
            "tool_choice": "auto",
            "context_management": [],
        }
    )
    assert call.ignored == ()
    assert call.sampling.logprobs is None


def test_what_is_repeated_is_what_is_done(read) -> None:
    repeated = read(
        {
            "input": "hi",
            "store": True,
            "service_tier": "flex",
            "metadata": {"a": "b"},
            "reasoning": {"effort": "low"},
            "user": "u",
            "parallel_tool_calls": False,
        },
        defaults={"temperature": 0.25},
    ).output.repeated
    assert repeated["store"] is False
    assert (repeated["service_tier"], repeated["truncation"]) == ("default", "disabled")
    assert (repeated["temperature"], repeated["top_p"], repeated["max_output_tokens"]) == (0.25, 1.0, None)
    assert (repeated["metadata"], repeated["user"]) == ({"a": "b"}, "u")
    assert repeated["reasoning"] == {"effort": "low", "summary": None}
    assert repeated["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported"),
        ({"conversation": "conv_1"}, "conversation", "unsupported"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported"),
        ({"background": True}, "background", "unsupported"),
        ({"truncation": "auto"}, "truncation", "unsupported"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "unsupported"),
        ({"moderation": {}}, "moderation", "unsupported"),
        ({"lora": "x"}, "lora", "unsupported"),
        ({"use_beam_search": True}, "use_beam_search", "unsupported"),
        ({"max_tokens": 5}, "max_tokens", None),
        ({"messages": [{}]}, "messages", None),
        ({"response_format": {"type": "json_object"}}, "response_format", None),
        ({"max_output_tokens": 0}, "max_output_tokens", None),
        ({"temperature": 9}, "temperature", None),
        ({"n": 2}, "n", None),
        ({"include": ["everything"]}, "include", None),
        ({"top_logprobs": 2}, "top_logprobs", None),
        ({"top_logprobs": 99, "include": ["message.output_text.logprobs"]}, "top_logprobs", None),
        ({"metadata": {"a": 1}}, "metadata", None),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", None),
        ({"metadata": {"a": "x" * 513}}, "metadata", None),
        ({"metadata": {"x" * 65: ""}}, "metadata", None),
        ({"reasoning": {"effort": 3}}, "reasoning.effort", None),
        ({"text": {"format": {"type": "json_lines"}}}, "text.format.type", None),
        ({"text": {"format": {}}}, "text.format.type", None),
        ({"text": 3}, "text", None),
        ({"instructions": 3}, "instructions", None),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "unsupported"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools.0.type", "unsupported"),
        ({"tools": [WEATHER, "x"]}, "tools.1", None),
        ({"tools": [WEATHER], "tool_choice": {"type": "file_search"}}, "tool_choice.type", "unsupported"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
            "tool_choice.tools.0.type",
            "unsupported",
        ),
        ({"model": "gpt"}, "model", "model_not_found"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(refusal, fields: dict[str, Any], param: str, code: str | None) -> None:
    failure = refusal(fields)
    assert (failure.status, failure.param) == (404 if param == "model" else 400, param)
    assert code is None or failure.code == code
    if param in ("previous_response_id", "conversation"):
        assert "send the whole conversation as input" in failure.message


def test_a_format_that_is_none_is_refused_by_the_name_that_it_has_here(refusal) -> None:
    for asked in ({"type": "json_lines"}, {"type": "json_schema", "name": "n", "schema": 3}):
        param = refusal({"text": {"format": asked}}).param
        assert param is not None
        assert param.startswith("text.format")


def test_thoughts_alone_are_no_conversation(refusal) -> None:
    for content in (None, [], [{"type": "reasoning_text", "text": "hm"}]):
        failure = refusal({"input": [{"type": "reasoning", "content": content}], "instructions": "be brief"})
        assert (failure.status, failure.param) == (400, "input")


def test_a_model_without_a_template_holds_no_conversation(refusal) -> None:
    assert refusal({}, has_chat_template=False).code == "no_chat_template"


def test_flat_tools_are_read_as_those_of_chat_completions(read, marked) -> None:
    other = {"type": "function", "name": "other", "parameters": None}
    call = read({"input": "hi", "tools": [WEATHER, other], "tool_choice": "required", "parallel_tool_calls": False})
    function = {name: WEATHER[name] for name in ("name", "description", "parameters", "strict")}
    assert marked == [
        {
            "tools": [{"type": "function", "function": function}, {"type": "function", "function": {"name": "other"}}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        }
    ]
    assert [tool["function"]["name"] for tool in call.prompts[0].tools] == ["weather", "other"]
    assert call.output.repeated["tools"] == [
        WEATHER,
        {"type": "function", "name": "other", "description": None, "parameters": None, "strict": False},
    ]
    assert call.output.repeated["tool_choice"] == "required"


def test_a_named_tool_and_a_subset_of_tools_can_be_chosen(read, marked) -> None:
    named = {"type": "function", "name": "other"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    other = {"type": "function", "function": {"name": "other"}}
    for choice, as_chat in (
        (named, other),
        (allowed, {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [other]}}),
    ):
        call = read({"input": "hi", "tools": [WEATHER, {**WEATHER, "name": "other"}], "tool_choice": choice})
        assert marked[-1]["tool_choice"] == as_chat
        assert call.output.repeated["tool_choice"] == choice


@pytest.mark.parametrize(
    ("param", "own"),
    [
        ("tools.12.function.parameters", "tools.12.parameters"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("tool_choice.allowed_tools.mode", "tool_choice.mode"),
        ("tool_choice.allowed_tools.tools.1.function.name", "tool_choice.tools.1.name"),
        ("tool_choice", "tool_choice"),
        ("tools.functional", "tools.functional"),
    ],
)
def test_a_fault_in_a_tool_is_named_as_here(refusal, monkeypatch, param: str, own: str) -> None:
    def read_tools(fields):
        raise RequestError(f"{param}: not {param}s, nor x.{param}", param=param, code="c", status=400)

    monkeypatch.setattr("asyncpage.server.responses.tools.read_tools", read_tools)
    failure = refusal({})
    assert (failure.param, failure.code) == (own, "c")
    assert failure.message == f"{own}: not {param}s, nor x.{param}"


def test_a_format_is_read_as_that_of_chat_completions_and_named_as_here(read, refusal, monkeypatch) -> None:
    seen = []

    def read_structured(fields):
        wanted = fields.value("response_format")
        seen.append(wanted)
        if wanted["json_schema"]["schema"] == {}:
            text = "response_format.json_schema.schema: the keyword 'x' is not supported, response_formatted or not"
            raise RequestError(text, param="response_format.json_schema.schema", code="unsupported")
        return GrammarSource("json_schema", "{}"), "response_format.json_schema.schema"

    monkeypatch.setattr("asyncpage.server.generate.answer_format.read_structured", read_structured)
    asked = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    call = read({"input": "hi", "text": {"format": asked}})
    inner = {"name": "n", "schema": {"type": "object"}, "strict": True}
    assert seen == [{"type": "json_schema", "json_schema": inner}]
    assert (call.grammar, call.grammar_param) == (GrammarSource("json_schema", "{}"), "text.format.schema")
    assert call.output.repeated["text"] == {"format": asked}
    failure = refusal({"text": {"format": {**asked, "schema": {}}}})
    assert failure.param == "text.format.schema"
    assert failure.message == "text.format.schema: the keyword 'x' is not supported, response_formatted or not"


def test_what_is_repeated_has_the_types_that_clients_expect(read, marked) -> None:
    choices: list[Any] = [None, "auto", "none", "required", {"type": "function", "name": "weather"}]
    for choice in choices:
        call = read({"input": "hi", "instructions": "i", "tools": [WEATHER], "tool_choice": choice})
        fields = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [], "status": "completed"}
        assert Response.model_validate_json(json.dumps({**fields, **call.output.repeated}), strict=True)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
NAMES = (
    "type role content text id call_id name arguments output summary input_text function_call "
    "function_call_output reasoning message user assistant format schema json_schema tools function mode "
    "auto allowed_tools"
)
VALUES = st.recursive(
    SCALARS | st.sampled_from(NAMES.split()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES.split()), inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "input instructions max_output_tokens temperature tools tool_choice text include metadata reasoning "
    "stream top_p truncation parallel_tool_calls chat_template_kwargs max_tool_calls user store stop"
)


@given(st.dictionaries(st.sampled_from(FIELDS.split()), VALUES), VALUES)
def test_no_body_raises_anything_but_a_refusal(make_setting, fields, given_input) -> None:
    body = parse_object(json.dumps({**fields, "input": given_input}).encode())
    with suppress(RequestError):
        assert read_response(body, make_setting()).prompts
