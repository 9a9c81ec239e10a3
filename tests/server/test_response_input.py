"""The Responses API's input: items become the messages that a chat template expects."""

from typing import Any

import pytest

from asyncpage.errors import Failure, RequestError
from asyncpage.server.fields import Fields
from asyncpage.server.responses.input import read_input


def messages(items: Any) -> list[dict[str, Any]]:
    return read_input(Fields({"input": items}))


def refusal(items: Any) -> Failure:
    with pytest.raises(RequestError) as caught:
        messages(items)
    return caught.value.failure


def test_a_string_is_what_the_user_says() -> None:
    assert messages("hello") == [{"role": "user", "content": "hello"}]


def test_messages_come_in_the_long_and_in_the_easy_form() -> None:
    items = [
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "b", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "c"},
            ],
        },
        {"role": "user", "content": "d"},
    ]
    assert messages(items) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b\nc"},
        {"role": "user", "content": "d"},
    ]


def test_calls_stand_in_the_message_that_made_them_and_outputs_behind_it() -> None:
    items = [
        {"role": "user", "content": "weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get", "arguments": '{"at": "Zürich"}'},
        {"type": "function_call", "call_id": "call_2", "name": "get", "arguments": "not JSON"},
        {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "sun"}]},
        {"type": "function_call", "call_id": "call_3", "name": "end", "arguments": ""},
    ]

    def call(id: str, name: str, arguments: Any) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}

    assert messages(items) == [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [call("call_1", "get", {"at": "Zürich"}), call("call_2", "get", "not JSON")],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain", "name": "get"},
        {"role": "tool", "tool_call_id": "call_2", "content": "sun", "name": "get"},
        {"role": "assistant", "content": "", "tool_calls": [call("call_3", "end", {})]},
    ]


def test_what_was_thought_belongs_to_what_the_assistant_says_next() -> None:
    def thought(**fields: Any) -> dict[str, Any]:
        return {"type": "reasoning", "id": "rs_1", **fields}

    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    first = thought(summary=[{"type": "summary_text", "text": "short"}], encrypted_content="abc")
    found = messages([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, first, call])
    assert [(message["content"], message.get("reasoning_content")) for message in found] == [
        ("a", None),
        ("b", None),
        ("", "short"),
    ]
    long = thought(summary=[{"type": "summary_text", "text": "short"}], content=[{"text": "long"}])
    assert messages([long, {"role": "assistant", "content": "b"}])[0]["reasoning_content"] == "long"
    assert messages([long, {"role": "user", "content": "b"}]) == [{"role": "user", "content": "b"}]


@pytest.mark.parametrize(
    ("items", "param", "words"),
    [
        (None, "input", "required"),
        (5, "input", "a string or a list"),
        ([], "input", "at least one"),
        ([{"type": "reasoning", "content": [{"text": "hm"}]}], "input", "more than"),
        (["hi"], "input.0", "must be an object"),
        ([{"role": "tool", "content": "a"}], "input.0.role", "'tool'"),
        ([{"role": ["user"], "content": "a"}], "input.0.role", "must be one of"),
        ([{"role": "user"}], "input.0.content", "required"),
        ([{"role": "user", "content": 3}], "input.0.content", "a string or a list of text parts"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "input.0.content.0.type", "'input_image'"),
        ([{"role": "user", "content": [{"type": "input_file"}]}], "input.0.content.0.type", "'input_file'"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input.0.content.0.text", "required"),
        ([{"role": "user", "content": [{"type": {}}]}], "input.0.content.0.type", "not supported"),
        ([{"type": "item_reference", "id": "msg_1"}], "input.0.type", "when store is false"),
        ([{"type": "web_search_call", "id": "ws_1"}], "input.0.type", "'web_search_call'"),
        ([{"type": ["message"], "role": "user", "content": "a"}], "input.0.type", "not supported"),
        ([{}], "input.0.type", "not supported"),
        ([{"type": "function_call", "name": "f", "arguments": "{}"}], "input.0.call_id", "required"),
        ([{"type": "function_call", "call_id": "1", "arguments": "{}"}], "input.0.name", "required"),
        ([{"type": "function_call", "call_id": "1", "name": "f", "arguments": 1}], "input.0.arguments", "JSON"),
        ([{"type": "function_call_output", "call_id": "1"}], "input.0.output", "required"),
        ([{"type": "function_call_output", "call_id": "1", "output": {}}], "input.0.output", "text parts"),
        ([{"type": "reasoning", "content": "x"}], "input.0.content", "must be a list"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_path(items: Any, param: str, words: str) -> None:
    failure = refusal(items)
    assert (failure.status, failure.param) == (400, param)
    assert words in failure.message
