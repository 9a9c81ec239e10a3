"""The chat body: what clients send is understood, what cannot be done is refused by name."""

import json
from typing import Any

import pytest

from asyncpage.errors import Failure, RequestError
from asyncpage.messages import ChatPrompt
from asyncpage.server.call import Call
from asyncpage.server.fields import Fields
from asyncpage.server.generate.call_fields import Setting
from asyncpage.server.generate.tool_fields import read_tools
from asyncpage.server.json_body import parse_object
from asyncpage.server.openai.chat_body import read_chat

USER = {"role": "user", "content": "hi"}


def setting(**changes: Any) -> Setting:
    facts: dict[str, Any] = {
        "model_names": ("echo", "alias"),
        "vocab_size": 257,
        "max_model_len": 512,
        "has_chat_template": True,
        "defaults": {},
        "max_choices": 16,
        "timeout_s": None,
        "now": 100.0,
    }
    return Setting(**{**facts, **changes})


def read(body: dict[str, Any] | str, **changes: Any) -> Call:
    raw = body if isinstance(body, str) else json.dumps(body)
    return read_chat(parse_object(raw.encode()), setting(**changes))


def ask(**fields: Any) -> Call:
    return read({"messages": [USER], **fields})


def refusal(fields: dict[str, Any] | str, **changes: Any) -> Failure:
    with pytest.raises(RequestError) as caught:
        read(fields if isinstance(fields, str) else {"messages": [USER], **fields}, **changes)
    return caught.value.failure


def prompt(messages: list[Any], **fields: Any) -> ChatPrompt:
    (found,) = read({"messages": messages, **fields}).prompts
    assert isinstance(found, ChatPrompt)
    return found


def contents(messages: list[Any]) -> list[str]:
    return [message["content"] for message in prompt(messages).messages]


def test_null_means_not_given_for_every_optional_field() -> None:
    names = (
        "model max_tokens max_completion_tokens temperature top_p n stop seed presence_penalty frequency_penalty "
        "logit_bias logprobs top_logprobs stream stream_options user metadata store tools tool_choice functions "
        "function_call response_format top_k min_p repetition_penalty min_tokens ignore_eos stop_token_ids bad_words "
        "include_stop_str_in_output skip_special_tokens add_generation_prompt chat_template_kwargs return_token_ids "
        "prompt_logprobs priority cache_salt allowed_token_ids truncate_prompt_tokens structured_outputs timeout "
        "chat_template continue_final_message echo add_special_tokens use_cache modalities"
    )
    assert ask(**dict.fromkeys(names.split())) == ask()


def test_defaults_are_those_of_the_api() -> None:
    sampling = ask().sampling
    assert (sampling.n, sampling.max_tokens, sampling.temperature, sampling.top_p) == (1, None, 1.0, 1.0)
    assert ask().model == "echo"


def test_what_the_request_leaves_out_comes_from_the_model() -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "stop_token_ids": (7,)}
    sampling = read({"messages": [USER], "top_k": 5}, defaults=defaults).sampling
    assert (sampling.temperature, sampling.top_k, sampling.stop_token_ids) == (0.6, 5, (7,))


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"max_tokens": 5}, "max_tokens", 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, "max_tokens", 7),
        ({"max_tokens": 8.0}, "max_tokens", 8),
        ({"temperature": 0}, "temperature", 0.0),
        ({"temperature": 1}, "temperature", 1.0),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 0}, "top_k", 0),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop": ["x", "y"]}, "stop", ("x", "y")),
        ({"stop": []}, "stop", ()),
        ({"seed": -1}, "seed", -1),
        ({"logit_bias": {"3": -100, "256": 5.5}}, "logit_bias", ((3, -100.0), (256, 5.5))),
        ({"logprobs": True}, "logprobs", 0),
        ({"logprobs": True, "top_logprobs": 3}, "logprobs", 3),
        ({"logprobs": False, "top_logprobs": 0}, "logprobs", None),
        ({"prompt_logprobs": 2}, "prompt_logprobs", 2),
        ({"stop_token_ids": [1, 2]}, "stop_token_ids", (1, 2)),
        ({"allowed_token_ids": [1]}, "allowed_token_ids", (1,)),
        ({"bad_words": ["a"]}, "bad_words", ("a",)),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"min_tokens": 2}, "min_tokens", 2),
        ({"skip_special_tokens": False}, "skip_special_tokens", False),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output", True),
        ({"n": 16}, "n", 16),
    ],
)
def test_sampling_fields_reach_the_engine(fields: dict[str, Any], name: str, value: Any) -> None:
    assert getattr(ask(**fields).sampling, name) == value


def test_engine_options_reach_the_engine() -> None:
    options = ask(priority=-3, cache_salt="tenant", truncate_prompt_tokens=9, use_cache=False, timeout=2.5).options
    assert (options.priority, options.cache_salt, options.truncate_prompt_tokens) == (-3, "tenant", 9)
    assert (options.use_cache, options.deadline) == (False, 102.5)
    assert not ask(cache_prompt=False).options.use_cache
    assert ask(truncate_prompt_tokens=-1).options.truncate_prompt_tokens == 511  # an answer needs a place
    assert ask().options.deadline is None
    assert read({"messages": [USER]}, timeout_s=4.0).options.deadline == 104.0
    assert read({"messages": [USER], "timeout": 9}, timeout_s=4.0).options.deadline == 109.0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 0, "max_completion_tokens": 5}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e308}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.0001}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 2**63}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 1e9}, "presence_penalty"),
        ({"frequency_penalty": "1"}, "frequency_penalty"),
        ({"seed": 2**64}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": 10**6}, "n"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["z"] * 100_000}, "stop"),
        ({"stop": ["z" * 1_000_000]}, "stop"),
        ({"stop": ["a", 1]}, "stop.1"),
        ({"stop": {"a": 1}}, "stop"),
        ({"bad_words": ["q"] * 100_000}, "bad_words"),
        ({"stop_token_ids": [257]}, "stop_token_ids"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids.0"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"logit_bias": {"AI": -100}}, "logit_bias"),
        ({"logit_bias": {"257": 5}}, "logit_bias"),
        ({"logit_bias": {"-1": 5}}, "logit_bias"),
        ({"logit_bias": {"999999999999": 1}}, "logit_bias"),
        ({"logit_bias": {"1.5": 1}}, "logit_bias"),
        ({"logit_bias": {"٣": 1}}, "logit_bias"),
        ({"logit_bias": {"3": "x"}}, "logit_bias"),
        ({"logit_bias": {"3": True}}, "logit_bias"),
        ({"logit_bias": {"3": 101}}, "logit_bias"),
        ({"logit_bias": [["3", 1]]}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(2000)}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 10**6}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"priority": 2**31}, "priority"),
        ({"priority": 0.5}, "priority"),
        ({"cache_salt": "x" * 257}, "cache_salt"),
        ({"cache_salt": 1}, "cache_salt"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -5}, "truncate_prompt_tokens"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": 1e300}, "timeout"),
        ({"model": 5}, "model"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_its_path(fields: dict[str, Any], param: str) -> None:
    failure = refusal(fields)
    assert (failure.status, failure.param) == (400, param)
    assert len(failure.message) < 500


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused_by_field(literal: str) -> None:
    body = '{"messages": [{"role": "user", "content": "x"}], %s}'
    assert refusal(body % f'"temperature": {literal}').param == "temperature"
    assert refusal(body % f'"logit_bias": {{"3": {literal}}}').param == "logit_bias"
    assert refusal(body % f'"max_tokens": {literal}').param == "max_tokens"


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_json_is_refused_also_where_nobody_reads(literal: str) -> None:
    body = '{"messages": [{"role": "user", "content": "x"}], "nobody_knows": [0, %s]}'
    assert refusal(body % literal).param == "nobody_knows.1"


def test_half_a_surrogate_pair_is_refused() -> None:
    assert refusal('{"messages": [{"role": "user", "content": "a\\ud800"}]}').param == "messages.0.content"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("lora_request", {"name": "a"}),
        ("adapter", "a"),
        ("chat_template", "{{ 1 }}"),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("use_beam_search", True),
        ("echo", True),
    ],
)
def test_what_this_version_lacks_is_refused_by_name(name: str, value: Any) -> None:
    failure = refusal({name: value})
    assert (failure.status, failure.param, failure.code) == (400, name, "unsupported")


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"parallel_tool_calls": False, "user": "u", "metadata": {}, "store": True, "service_tier": "auto"},
        {"use_beam_search": False},
    ],
)
def test_what_changes_nothing_is_accepted(fields: dict[str, Any]) -> None:
    assert ask(**fields) == ask()


def test_special_tokens_around_a_rendered_template_must_be_asked_for() -> None:
    assert not prompt([USER]).add_special
    assert prompt([USER], add_special_tokens=True).add_special


def test_unknown_fields_are_ignored_and_told() -> None:
    call = ask(frobnicate=1, user="u", mirostat=2, nothing=None)
    assert call.ignored == ("frobnicate", "mirostat")


def test_unknown_fields_of_the_objects_inside_are_told_too() -> None:
    function = {"name": "f", "parameters": {"type": "object", "x-of-the-schema": 1}, "x": 1}
    called = {"id": "1", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}", "x": 1}, "x": 1}
    call = ask(
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}, "x": 1}], "x": 1},
            {"role": "assistant", "content": "b", "refusal": None, "annotations": [], "tool_calls": [called]},
        ],
        stream=True,
        stream_options={"include_usage": True, "x": 1},
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"x": 1}, "x": 1}, "x": 1},
    )
    assert sorted(call.ignored) == [
        "messages.0.content.0.x",
        "messages.0.x",
        "messages.1.tool_calls.0.function.x",
        "messages.1.tool_calls.0.x",
        "response_format.json_schema.x",
        "response_format.x",
        "stream_options.x",
    ]
    tools = [{"type": "function", "function": function, "x": 1}]
    choice = {"type": "function", "function": {"name": "f", "x": 1}, "x": 1}
    fields = Fields({"tools": tools, "tool_choice": choice})
    read_tools(fields)
    assert list(fields.unread()) == ["tools.0.x", "tools.0.function.x", "tool_choice.x", "tool_choice.function.x"]


def test_an_unknown_model_is_not_found() -> None:
    failure = refusal({"model": "gpt\n4"})
    assert (failure.status, failure.code, failure.param) == (404, "model_not_found", "model")
    assert "\n" not in failure.message
    assert ask(model="alias").model == "alias"


def test_text_parts_are_joined_and_empty_contents_are_equal() -> None:
    parts = [{"type": "text", "text": "MARK1"}, {"type": "refusal", "refusal": "MARK2"}]
    assert contents([{"role": "user", "content": parts}]) == ["MARK1\nMARK2"]
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for content in ({}, {"content": None}, {"content": ""}, {"content": []}):
        assert contents([USER, {"role": "assistant", "tool_calls": [call], **content}]) == ["hi", ""]


def test_roles_and_what_belongs_to_them_reach_the_template() -> None:
    messages = [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": "n?", "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Zürich"}'}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "not json"}},
                {"id": "c3", "type": "function", "function": {"name": "h"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    system, user, assistant, tool = prompt(messages).messages
    assert system == {"role": "system", "content": "be short"}
    assert user == {"role": "user", "content": "n?", "name": "ann"}
    assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == [{"city": "Zürich"}, "not json", {}]
    assert tool == {"role": "tool", "content": "42", "tool_call_id": "c1"}


def test_a_call_in_its_older_form_reaches_the_template_as_a_tool_call() -> None:
    called = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}
    call = read({"messages": [USER, called, {"role": "function", "name": "f", "content": "42"}]})
    assert isinstance(call.prompts[0], ChatPrompt)
    _, assistant, function = call.prompts[0].messages
    assert assistant["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
    assert function == {"role": "function", "name": "f", "content": "42"}
    assert call.ignored == ()


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ({}, "messages"),
        (["hi"], "messages.0"),
        ([{"content": "a"}], "messages.0.role"),
        ([{"role": "wizard", "content": "a"}], "messages.0.role"),
        ([{"role": ["user"], "content": "a"}], "messages.0.role"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": 5}], "messages.0.content"),
        ([USER, {"role": "user", "content": [{"type": "hologram"}]}], "messages.1.content.0.type"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages.0.content.0.type",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages.0.content.0.text"),
        ([{"role": "user", "content": ["hi"]}], "messages.0.content.0"),
        ([{"role": "user", "content": "a", "name": "n" * 300}], "messages.0.name"),
        ([{"role": "assistant", "tool_calls": {}}], "messages.0.tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], "messages.0.tool_calls.0.function.name"),
        ([{"role": "assistant", "function_call": "f"}], "messages.0.function_call"),
        ([{"role": "assistant", "function_call": {"arguments": "{}"}}], "messages.0.function_call.name"),
    ],
)
def test_messages_of_another_shape_are_refused_by_path(messages: Any, param: str) -> None:
    failure = refusal({"messages": messages})
    assert (failure.status, failure.param) == (400, param)


def test_an_unknown_part_type_is_named() -> None:
    assert "hologram" in refusal({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}).message


def test_arguments_nested_beyond_reason_stay_text() -> None:
    arguments = '{"a":' * 5000 + "1" + "}" * 5000
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    (message,) = prompt([{"role": "assistant", "tool_calls": [call]}]).messages
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


def test_a_final_assistant_message_goes_on_only_when_asked() -> None:
    messages = [USER, {"role": "assistant", "content": "So"}]
    assert prompt(messages).add_generation_prompt
    going_on = prompt(messages, continue_final_message=True)
    assert going_on.continue_final_message
    assert not going_on.add_generation_prompt
    both = {"messages": messages, "continue_final_message": True, "add_generation_prompt": True}
    assert refusal(both).param == "continue_final_message"
    assert not prompt(messages, add_generation_prompt=False).add_generation_prompt
    assert prompt([USER], chat_template_kwargs={"enable_thinking": False}).kwargs == {"enable_thinking": False}


def test_a_model_without_template_refuses_chat_and_says_what_works() -> None:
    failure = refusal({}, has_chat_template=False)
    assert (failure.status, failure.code) == (400, "no_chat_template")
    assert "/v1/completions" in failure.message
