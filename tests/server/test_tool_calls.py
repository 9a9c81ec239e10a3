"""Chat completions in which tools are called: whole and streamed, several choices, thinking, and what ends an answer.

The engine repeats the user's words byte by byte, so what a test says is what its model writes, cut everywhere.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from asyncpage.messages import ChatPrompt
from asyncpage.server.generate.chunk_writer import ChunkWriter
from asyncpage.text.tools.hermes import HermesReader
from asyncpage.text.tools.mistral import Mistral

PATH = "/v1/chat/completions"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
NOBODY = {"type": "function", "function": {"name": "nope"}}


def call(city: str) -> str:
    body = json.dumps({"name": "get_weather", "arguments": {"city": city}}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


TWO = f"{call('Tokyo')}\n{call('Zürich 京')}"


def put_together(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The message of each streamed choice, as clients build it; its reason, and its log-probabilities."""
    built: dict[int, dict[str, Any]] = {}
    for choice in [choice for chunk in chunks for choice in chunk["choices"]]:
        delta = choice["delta"]
        if choice["index"] not in built:
            assert delta == {"role": "assistant", "content": ""}
            built[choice["index"]] = {"content": "", "reasoning": "", "calls": [], "reason": None, "logprobs": []}
            continue
        made = built[choice["index"]]
        assert made["reason"] is None
        assert "role" not in delta
        made["content"] += delta.get("content", "")
        made["reasoning"] += delta.get("reasoning_content", "")
        made["logprobs"] += (choice["logprobs"] or {}).get("content", [])
        for piece in delta.get("tool_calls", []):
            if "id" in piece:
                assert piece["index"] == len(made["calls"])
                assert piece["type"] == "function"
                assert piece["function"]["arguments"] == ""
                made["calls"].append({"id": piece["id"], "name": piece["function"]["name"], "arguments": ""})
            else:
                assert list(piece["function"]) == ["arguments"]
                made["calls"][piece["index"]]["arguments"] += piece["function"]["arguments"]
        made["reason"] = choice["finish_reason"]
    return built


def taken_apart(answer: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The same of a whole answer."""
    return {
        choice["index"]: {
            "content": choice["message"]["content"] or "",
            "reasoning": choice["message"].get("reasoning_content", ""),
            "calls": [{"id": call["id"], **call["function"]} for call in choice["message"].get("tool_calls", [])],
            "reason": choice["finish_reason"],
            "logprobs": (choice["logprobs"] or {}).get("content", []),
        }
        for choice in answer["choices"]
    }


def without_ids(built: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {index: {**made, "calls": [{**call, "id": ""} for call in made["calls"]]} for index, made in built.items()}


async def both(site: Any, content: str, **fields: Any) -> dict[int, dict[str, Any]]:
    """The answer, which must be the same whole and streamed but for the names of calls."""
    whole = taken_apart(await site.chat(content, **fields))
    messages = [{"role": "user", "content": content}]
    streamed = put_together(await site.stream(PATH, messages=messages, **fields))
    assert without_ids(streamed) == without_ids(whole)
    ids = [call["id"] for built in (whole, streamed) for made in built.values() for call in made["calls"]]
    assert len(set(ids)) == len(ids)
    assert all(id.startswith("call_") for id in ids)
    return whole


async def test_two_calls_come_apart_with_names_and_arguments_of_their_own(site) -> None:
    made = (await both(site, TWO, tools=TOOLS, parallel_tool_calls=True))[0]
    assert [(call["name"], json.loads(call["arguments"])["city"]) for call in made["calls"]] == [
        ("get_weather", "Tokyo"),
        ("get_weather", "Zürich 京"),
    ]
    assert (made["content"], made["reason"]) == ("", "tool_calls")


async def test_content_is_null_where_there_are_only_calls(site) -> None:
    message = (await site.chat(call("Bern"), tools=TOOLS))["choices"][0]["message"]
    assert message["content"] is None
    assert message["refusal"] is None
    plain = (await site.chat("Hi", tools=TOOLS))["choices"][0]
    assert plain["message"] == {"role": "assistant", "content": "Hi", "refusal": None}
    assert plain["finish_reason"] == "stop"


async def test_words_around_calls_stay(site) -> None:
    made = (await both(site, f"Let me see.\n{call('Bern')}\nThen we go.", tools=TOOLS))[0]
    assert (made["content"], len(made["calls"]), made["reason"]) == ("Let me see.\nThen we go.", 1, "tool_calls")


@pytest.mark.parametrize("stop", [None, ["END"]])
async def test_what_only_looks_like_a_call_is_delivered_in_full(site, stop: list[str] | None) -> None:
    for content in ("Sure <", "a <tool_call", "<tool_call>{oops</tool_call> 2 < 3\n"):
        made = (await both(site, content + ("END of it" if stop else ""), tools=TOOLS, stop=stop))[0]
        assert (made["content"], made["calls"], made["reason"]) == (content, [], "stop")


async def test_a_stop_string_behind_a_call_keeps_the_call(site) -> None:
    made = (await both(site, f"{call('Bern')} and END more", tools=TOOLS, stop=["END"]))[0]
    assert (made["content"], made["reason"]) == (" and ", "tool_calls")
    assert json.loads(made["calls"][0]["arguments"]) == {"city": "Bern"}


async def test_a_call_that_is_cut_off_says_so(site) -> None:
    made = (await both(site, call("Bern"), tools=TOOLS, max_tokens=60))[0]
    assert made["reason"] == "length"
    assert made["calls"][0]["arguments"].startswith('{"city"')


async def test_a_call_that_is_cut_off_behind_its_name_is_no_content(site) -> None:
    text = call("Bern")
    for size in (text.index('"name"') + 8, text.index("arguments"), text.index("city")):
        made = (await both(site, "Yes. " + text, tools=TOOLS, max_tokens=5 + size))[0]
        is_named = text[:size].count('"') > 3
        assert made["reason"] == "length"
        assert [found["name"] for found in made["calls"]] == ["get_weather"] * is_named
        assert made["content"] == ("Yes." if is_named else "Yes. " + text[:size])


async def test_every_choice_has_calls_of_its_own(site) -> None:
    made = await both(site, call("Bern"), tools=TOOLS, n=3)
    assert len(made) == 3
    assert len(made[0]["calls"]) == 1


async def test_the_logprobs_of_every_token_are_told_once(site) -> None:
    content = f"<think>hm</think>I see. {call('Bern')}"
    made = (await both(site, content, tools=TOOLS, logprobs=True, top_logprobs=1))[0]
    told = b"".join(bytes(entry["bytes"]) for entry in made["logprobs"])
    assert told.decode() == content


async def test_none_and_no_tools_leave_markup_in_the_answer(site) -> None:
    for fields in ({"tools": TOOLS, "tool_choice": "none"}, {}):
        made = (await both(site, call("Bern"), **fields))[0]
        assert (made["content"], made["calls"], made["reason"]) == (call("Bern"), [], "stop")


async def test_one_call_is_told_where_one_was_asked_for(site) -> None:
    made = (await both(site, TWO, tools=TOOLS, parallel_tool_calls=False))[0]
    assert [json.loads(call["arguments"])["city"] for call in made["calls"]] == ["Tokyo"]


async def test_thinking_is_told_apart(site) -> None:
    content = f"<think>\nWhere? <tool_call>\n</think>\n\nI look. {call('Bern')}"
    made = (await both(site, content, tools=TOOLS))[0]
    assert (made["reasoning"], made["content"], len(made["calls"])) == ("Where? <tool_call>", "I look.", 1)
    silent = (await both(site, content, tools=TOOLS, include_reasoning=False))[0]
    assert (silent["reasoning"], silent["content"]) == ("", "I look.")
    message = (await site.chat("<think>a</think>b", include_reasoning=None))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "b", "refusal": None, "reasoning_content": "a"}


async def test_thinking_that_the_prompt_has_begun_is_told_apart(site) -> None:
    site.engine.end_of_prompt = "<think>\n"
    made = (await both(site, "Hm.\n</think>\n\nYes"))[0]
    assert (made["reasoning"], made["content"]) == ("Hm.", "Yes")


async def test_the_template_is_given_the_tools_and_what_was_called_before(site) -> None:
    past = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": [2.0]}'}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [past, {"function": {"name": "g"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "42"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": "y"},
    ]
    status, _ = await site.post(PATH, {"messages": messages, "tools": TOOLS})
    assert status == 200
    prompt = site.engine.submitted[-1][0]
    assert isinstance(prompt, ChatPrompt)
    assert prompt.tools[0]["function"]["name"] == "get_weather"
    assert prompt.messages[1]["content"] == ""
    first, second = prompt.messages[1]["tool_calls"]
    assert list(first["function"]["arguments"].items()) == [("b", 1), ("a", [2.0])]
    assert second == {"type": "function", "function": {"name": "g", "arguments": {}}}
    assert prompt.messages[2] == {"role": "tool", "content": "42", "tool_call_id": "call_1"}
    assert prompt.messages[3]["content"] == "no"


async def test_control_tokens_are_shown_to_a_reader_that_needs_them(site) -> None:
    site.engine.tool_parser = Mistral("")
    made = (await both(site, '[TOOL_CALLS] [{"name": "f", "arguments": {}}]', tools=TOOLS))[0]
    assert made["calls"][0]["name"] == "f"
    assert not site.engine.submitted[-1][1].skip_special_tokens
    await site.chat("x")
    assert site.engine.submitted[-1][1].skip_special_tokens


@pytest.mark.parametrize("fields", [{}, {"logprobs": True}, {"stream_options": {"include_usage": True}}])
async def test_pieces_that_gather_keep_their_order_and_their_kinds(site, monkeypatch, fields: dict[str, Any]) -> None:
    """A stream lets text gather while its loop is behind."""
    monkeypatch.setattr(ChunkWriter, "_must_hold", lambda writer: True)
    site.engine.max_model_len = 4096
    content = f"<think>a b c</think>One. {TWO} Two. {call('Rom')}"
    asked = {"messages": [{"role": "user", "content": content}], "tools": TOOLS, "n": 2, **fields}
    chunks = await site.stream(PATH, **asked)
    made = put_together(chunks)[0]
    assert (made["reasoning"], made["content"], made["reason"]) == ("a b c", "One. Two.", "tool_calls")
    assert [json.loads(call["arguments"])["city"] for call in made["calls"]] == ["Tokyo", "Zürich 京", "Rom"]
    if fields != {"logprobs": True}:
        assert len(chunks) < 30


async def test_a_parser_that_fails_ends_the_answer_with_an_error(site, monkeypatch) -> None:
    def fail(reader: HermesReader, text: str) -> Any:
        raise LookupError("inner detail")

    monkeypatch.setattr(HermesReader, "feed", fail)
    asked = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
    status, body = await site.post(PATH, asked)
    assert (status, body["error"]["code"]) == (500, "internal_error")
    async with site.session.post(site.url + PATH, json={**asked, "stream": True}) as answer:
        streamed = await answer.read()
    assert b'"code":"internal_error"' in streamed
    assert b"inner detail" not in streamed


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}},
            "tool_choice.function.name",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"include_reasoning": "yes"}, "include_reasoning"),
    ],
)
async def test_what_cannot_be_is_refused(site, fields: dict[str, Any], param: str) -> None:
    status, body = await site.post(PATH, {"messages": [{"role": "user", "content": "x"}], **fields})
    assert (status, body["error"]["param"]) == (400, param)


async def test_a_server_may_forbid_models_to_choose_by_themselves(serve) -> None:
    site = await serve(enable_auto_tool_choice=False)
    status, body = await site.post(PATH, {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS})
    assert (status, body["error"]["param"]) == (400, "tool_choice")


async def test_text_completions_refuse_tools(site) -> None:
    for fields in ({"tools": TOOLS}, {"tool_choice": "required"}):
        status, body = await site.post("/v1/completions", {"prompt": "x", **fields})
        assert (status, body["error"]["code"]) == (400, "unsupported")
    assert (await site.complete(prompt="x", tools=[], tool_choice="none", parallel_tool_calls=True))["choices"]
