"""The Messages API's body: turns become a conversation, and what cannot be done is refused by name."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpage.errors import Failure, RequestError
from asyncpage.grammar.source import GrammarSource
from asyncpage.messages import ChatPrompt
from asyncpage.server.anthropic.body import read_counted, read_message
from asyncpage.server.call import Call
from asyncpage.server.json_body import parse_object

USER = {"role": "user", "content": "hi"}
WEATHER = {"name": "weather", "description": "d", "input_schema": {"type": "object"}}


@pytest.fixture(scope="session")
def read(make_setting):
    def reads(fields: dict[str, Any], **changes: Any) -> Call:
        body = {"messages": [USER], "max_tokens": 10, **fields}
        return read_message(parse_object(json.dumps(body).encode()), make_setting(**changes))

    return reads


@pytest.fixture(scope="session")
def refusal(read):
    def refused(fields: dict[str, Any], **changes: Any) -> Failure:
        with pytest.raises(RequestError) as caught:
            read(fields, **changes)
        return caught.value.failure

    return refused


@pytest.fixture(scope="session")
def prompt(read):
    def prompted(messages: list[Any], **fields: Any) -> ChatPrompt:
        (found,) = read({"messages": messages, **fields}).prompts
        assert isinstance(found, ChatPrompt)
        return found

    return prompted


def test_fields_reach_the_call(read) -> None:
    call = read(
        {
            "model": "alias",
            "system": [{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}, text("brief")],
            "max_tokens": 7,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 3,
            "stop_sequences": ["a", "b"],
            "stream": True,
            "seed": 5,
            "new_field": 1,
        }
    )
    (found,) = call.prompts
    assert found.messages == ({"role": "system", "content": "be\nbrief"}, USER)
    sampling = call.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.5, 0.9, 3)
    assert (sampling.stop, sampling.seed, sampling.logprobs) == (("a", "b"), 5, None)
    assert (call.model, call.output.stream, call.ignored) == ("alias", True, ("new_field",))


def test_fields_without_an_effect_are_taken_and_null_means_not_given(read) -> None:
    taken = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "context_management": {"edits": []},
        "output_config": {"effort": "low"},
        "cache_control": {"type": "ephemeral"},
        "tools": [],
    }
    assert read(taken).ignored == ()
    names = (*taken, "system", "temperature", "top_p", "top_k", "stop_sequences", "stream", "tool_choice", "container")
    assert read(dict.fromkeys(names)) == read({})


def test_unknown_fields_of_the_objects_inside_are_told(read) -> None:
    tool = {"name": "f", "input_schema": {"type": "object"}, "cache_control": {}, "x": 1}
    turn = {"role": "user", "content": [{"type": "text", "text": "a", "citations": [], "x": 1}], "x": 1}
    call = read({"messages": [turn], "tools": [tool], "tool_choice": {"type": "none", "x": 1}})
    assert sorted(call.ignored) == ["messages.0.content.0.x", "messages.0.x", "tool_choice.x", "tools.0.x"]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def test_blocks_become_the_messages_that_templates_expect(prompt) -> None:
    turns = [
        {"role": "user", "content": [text("weather?"), text("now")]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                text("I look."),
                use("1", "get", at="Zürich"),
                use("2", "list"),
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "rain"},
                {"type": "tool_result", "tool_use_id": "2", "content": [text("a"), text("b")], "is_error": True},
                {"type": "tool_result", "tool_use_id": "3"},
                text("so?"),
            ],
        },
    ]

    def call(id: str, name: str, arguments: Any) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}

    found = prompt(turns)
    assert found.messages == (
        {"role": "user", "content": "weather?\nnow"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [call("1", "get", {"at": "Zürich"}), call("2", "list", {})],
        },
        {"role": "tool", "tool_call_id": "1", "content": "rain", "name": "get"},
        {"role": "tool", "tool_call_id": "2", "content": "a\nb", "name": "list"},
        {"role": "tool", "tool_call_id": "3", "content": ""},
        {"role": "user", "content": "so?"},
    )
    assert found.add_generation_prompt


def test_turns_of_one_role_that_follow_one_another_are_one(prompt) -> None:
    found = prompt([USER, {"role": "user", "content": [text("you")]}, {"role": "assistant", "content": ""}, USER])
    assert found.messages == ({"role": "user", "content": "hi\nyou"}, {"role": "assistant", "content": ""}, USER)


def test_a_turn_without_a_word_is_an_empty_message(prompt) -> None:
    for turn in (
        {"role": "user", "content": []},
        {"role": "system", "content": []},
        {"role": "assistant", "content": []},
    ):
        assert prompt([turn]).messages == ({"role": turn["role"], "content": ""},)
    thought = {"type": "redacted_thinking", "data": "x"}
    assert prompt([{"role": "assistant", "content": [thought]}]).messages == ({"role": "assistant", "content": ""},)
    result = {"type": "tool_result", "tool_use_id": "a", "content": "b"}
    assert len(prompt([{"role": "user", "content": [result]}]).messages) == 1


def test_a_last_turn_of_the_assistants_is_gone_on_with(prompt) -> None:
    begun = prompt([USER, {"role": "assistant", "content": "The answer is ("}])
    assert (begun.continue_final_message, begun.add_generation_prompt) == (True, False)
    called = prompt([USER, {"role": "assistant", "content": [text("a"), use("1", "f")]}])
    assert (called.continue_final_message, called.add_generation_prompt) == (False, True)


def test_thinking_that_is_disabled_is_told_to_the_template(prompt) -> None:
    assert prompt([USER], thinking={"type": "disabled"}).kwargs == {"enable_thinking": False}
    assert prompt([USER], thinking={"type": "adaptive"}).kwargs == {}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"max_tokens": None}, "max_tokens", "required"),
        ({"max_tokens": 0}, "max_tokens", "between 1"),
        ({"messages": None}, "messages", "required"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": "hi"}, "messages", "must be a list"),
        ({"messages": ["hi"]}, "messages.0", "must be an object"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role", "'tool'"),
        ({"messages": [{"role": [], "content": "a"}]}, "messages.0.role", "must be one of"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "required"),
        ({"messages": [{"role": "user", "content": {}}]}, "messages.0.content", "list of blocks"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0.type", "'image'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "messages.0.content.0.type",
            "'document'",
        ),
        ({"messages": [{"role": "user", "content": [use("1", "f")]}]}, "messages.0.content.0.type", "'tool_use'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text", "required"),
        (
            {"messages": [{"role": "assistant", "content": [{**use("1", "f"), "input": []}]}]},
            "messages.0.content.0.input",
            "an object",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "a"}]}]},
            "messages.0.content.0.tool_use_id",
            "required",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{}]}]}]},
            "messages.0.content.0.content.0.type",
            "required",
        ),
        ({"system": 3}, "system", "list of text blocks"),
        ({"system": [{"type": "image"}]}, "system.0.type", "'image'"),
        ({"stop_sequences": [""]}, "stop_sequences", "stop_sequences must not contain an empty string"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences", "at most 16"),
        ({"stop": ["x"]}, "stop", "see stop_sequences"),
        ({"temperature": 3}, "temperature", "between"),
        ({"n": 2}, "n", "one choice"),
        ({"container": "c"}, "container", "containers"),
        ({"mcp_servers": [{}]}, "mcp_servers", "servers of tools"),
        ({"lora": "x"}, "lora", "adapters"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type", "'web_search_20250305'"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema", "required"),
        ({"tools": ["f"]}, "tools.0", "an object"),
        ({"tools": [WEATHER], "tool_choice": {"type": "some"}}, "tool_choice.type", "'some'"),
        ({"tools": [WEATHER], "tool_choice": "auto"}, "tool_choice", "an object"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name", "required"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type", ""),
        ({"output_format": {"type": "xml"}}, "output_format.type", ""),
        ({"thinking": True}, "thinking", "an object"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(refusal, fields: dict[str, Any], param: str, words: str) -> None:
    failure = refusal(fields)
    assert (failure.status, failure.param) == (400, param)
    assert words in failure.message


def test_a_format_that_is_none_is_refused_by_the_name_that_it_has_here(refusal) -> None:
    for fields, path in (
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"output_format": {"type": "json_schema", "schema": 3}}, "output_format"),
    ):
        param = refusal(fields).param
        assert param is not None
        assert param.startswith(path)


def test_other_refusals_are_those_of_every_route(refusal) -> None:
    assert refusal({"model": "claude"}).code == "model_not_found"
    assert refusal({}, has_chat_template=False).code == "no_chat_template"


def test_tools_are_read_as_those_of_chat_completions(read, marked) -> None:
    for choice, expected, is_parallel in (
        (None, None, None),
        ({"type": "auto"}, "auto", None),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", None),
        (
            {"type": "tool", "name": "weather", "disable_parallel_tool_use": False},
            {"type": "function", "function": {"name": "weather"}},
            True,
        ),
    ):
        call = read({"tools": [WEATHER, {"name": "f", "type": "custom", "input_schema": {}}], "tool_choice": choice})
        functions = [
            {"name": "weather", "description": "d", "parameters": {"type": "object"}},
            {"name": "f", "parameters": {}},
        ]
        assert marked[-1] == {
            "tools": [{"type": "function", "function": function} for function in functions],
            "tool_choice": expected,
            "parallel_tool_calls": is_parallel,
        }
        assert [tool["function"]["name"] for tool in call.prompts[0].tools] == ["weather", "f"]


def test_a_fault_in_a_tool_is_named_as_here(refusal, monkeypatch) -> None:
    def read_tools(fields):
        param = "tools.1.function.parameters.properties"
        raise RequestError(f"{param} must be an object, functional", param=param)

    monkeypatch.setattr("asyncpage.server.anthropic.tools.read_tools", read_tools)
    failure = refusal({"tools": [WEATHER]})
    assert failure.param == "tools.1.input_schema.properties"
    assert failure.message == "tools.1.input_schema.properties must be an object, functional"


def test_a_format_is_read_as_that_of_chat_completions(read, monkeypatch) -> None:
    seen = []

    def read_structured(fields):
        seen.append(fields.value("response_format"))
        return GrammarSource("json_schema", "{}"), "response_format.json_schema.schema"

    monkeypatch.setattr("asyncpage.server.generate.answer_format.read_structured", read_structured)
    asked = {"type": "json_schema", "schema": {"type": "object"}}
    for fields, path in (
        ({"output_config": {"format": asked}}, "output_config.format.schema"),
        ({"output_format": asked}, "output_format.schema"),
    ):
        call = read(fields)
        assert (call.grammar, call.grammar_param) == (GrammarSource("json_schema", "{}"), path)
        assert seen[-1] == {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
NAMES = (
    "type role content text id name input tool_use tool_result tool_use_id thinking signature user assistant system "
    "format schema json_schema tools auto any tool input_schema disabled"
)
VALUES = st.recursive(
    SCALARS | st.sampled_from(NAMES.split()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES.split()), inner, max_size=4),
    max_leaves=12,
)
FIELDS = "system max_tokens temperature tools tool_choice thinking stream top_p stop_sequences output_config metadata"


@given(st.dictionaries(st.sampled_from(FIELDS.split()), VALUES), VALUES)
def test_no_body_raises_anything_but_a_refusal(make_setting, fields, messages) -> None:
    raw = json.dumps({"max_tokens": 1, **fields, "messages": messages}).encode()
    for reads in (read_message, read_counted):
        with suppress(RequestError):
            assert reads(parse_object(raw), make_setting())
