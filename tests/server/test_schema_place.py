"""Faults in schemas that are parts of a structure: the compiler finds them, and the client is told its own path."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from asyncpage.errors import RequestError
from asyncpage.grammar.compile import compile_source
from asyncpage.grammar.source import GrammarSource
from asyncpage.messages import Constraint
from asyncpage.server.anthropic.body import read_message
from asyncpage.server.call import Call
from asyncpage.server.fields import Fields
from asyncpage.server.generate.reply_plan import plan_reply
from asyncpage.server.generate.schema_place import place_in_request
from asyncpage.server.generate.structured_fields import compile_call
from asyncpage.server.generate.tool_fields import read_tools
from asyncpage.server.json_body import parse_object
from asyncpage.server.openai.chat_body import read_chat
from asyncpage.server.responses.body import read_response
from asyncpage.text.reasoning.think import DeepSeekR1
from asyncpage.text.tools.registry import TOOL_PARSERS

NOT = {"type": "array", "items": {"type": "integer", "not": {}}}
GOOD = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b.c": NOT}}, "properties.b.c.items.not"),
    (
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": NOT}, "required": ["a"]},
        "$defs.A.items.not",
    ),
]


def function(name: str, parameters: Any, *, strict: bool = False) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


class Compiles:
    """An engine's part of the way: the compiler itself."""

    async def compile_grammar(self, source: GrammarSource) -> Constraint:
        return Constraint("builtin", compile_source(source).to_bytes())


@pytest.mark.parametrize("name", TOOL_PARSERS.names())
@pytest.mark.parametrize(("schema", "inside"), FAULTS)
@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize("thinks", [True, False])
def test_a_fault_in_a_tools_schema_has_a_place_in_the_request(
    make_setting: Callable[..., Any], name: str, schema: dict[str, Any], inside: str, forced: bool, thinks: bool
) -> None:
    tools = [function("ping", None), function("good", GOOD, strict=True), function("bad", schema, strict=True)]
    use = read_tools(Fields({"tools": tools, "tool_choice": "required" if forced else "auto"}))
    setting = make_setting(tool_parser=TOOL_PARSERS.load(name, ""), reasoning_parser=DeepSeekR1("") if thinks else None)
    plan = plan_reply(use, setting)
    assert plan.grammar is not None
    with pytest.raises(RequestError) as caught:
        compile_source(plan.grammar)
    path = caught.value.failure.param
    assert path is not None
    assert place_in_request(plan.grammar.text, path, plan.grammar_schemas) == f"tools.2.function.parameters.{inside}"


def chat_tools(schema: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [function("good", GOOD), function("bad", schema)],
        "tool_choice": "required",
    }


def flat_tools(schema: Any) -> dict[str, Any]:
    tools = [{"type": "function", "name": name, "parameters": own} for name, own in (("good", GOOD), ("bad", schema))]
    return {"input": "x", "tools": tools, "tool_choice": "required"}


def input_schemas(schema: Any) -> dict[str, Any]:
    tools = [{"name": name, "input_schema": own} for name, own in (("good", GOOD), ("bad", schema))]
    messages = [{"role": "user", "content": "x"}]
    return {"max_tokens": 9, "messages": messages, "tools": tools, "tool_choice": {"type": "any"}}


def answer_schema(schema: Any) -> dict[str, Any]:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    return {**chat_tools(GOOD), "tool_choice": "auto", "response_format": wanted}


@pytest.mark.parametrize(
    ("read", "body", "place"),
    [
        (read_chat, chat_tools, "tools.1.function.parameters"),
        (read_response, flat_tools, "tools.1.parameters"),
        (read_message, input_schemas, "tools.1.input_schema"),
        (read_chat, answer_schema, "response_format.json_schema.schema"),
    ],
)
async def test_each_api_names_the_place_by_its_own_fields(
    make_setting: Callable[..., Any], read: Callable[..., Call], body: Callable[[Any], Any], place: str
) -> None:
    setting = make_setting(tool_parser=TOOL_PARSERS.load("hermes", ""), reasoning_parser=None)
    for schema, inside in FAULTS:
        call = read(parse_object(json.dumps(body(schema)).encode()), setting)
        with pytest.raises(RequestError) as caught:
            await compile_call(Compiles(), call)  # type: ignore[arg-type]
        failure = caught.value.failure
        assert (failure.status, failure.code, failure.param) == (400, "unsupported", f"{place}.{inside}")
        assert failure.message.startswith(f"{place}.{inside}: ")


def test_a_format_that_cannot_keep_a_schema_says_whose_it_is(make_setting: Callable[..., Any]) -> None:
    long = {"type": "object", "properties": {"a": {"type": "string", "minLength": 3}}}
    use = read_tools(Fields({"tools": [function("good", GOOD), function("bad", long)], "tool_choice": "required"}))
    with pytest.raises(RequestError, match="minLength cannot be kept") as caught:
        plan_reply(use, make_setting(tool_parser=TOOL_PARSERS.load("qwen3_coder", ""), reasoning_parser=None))
    assert (caught.value.failure.param, caught.value.failure.code) == ("tools.1.function.parameters", "unsupported")
    assert caught.value.failure.message.startswith("tools.1.function.parameters: ")


def test_what_is_in_no_schema_of_the_request_has_no_place() -> None:
    part = json.dumps({"sequence": [{"literal": "a"}, {"repeat": {"schema": {"not": {}}}, "min": 0, "max": None}]})
    path = "sequence.1.repeat.schema.not"
    assert place_in_request(part, path, {"tools.0.function.parameters": {"not": {}}}) == (
        "tools.0.function.parameters.not"
    )
    assert place_in_request(part, path, {"tools.0.function.parameters": {"not": []}}) is None
    for other in ("", "sequence", "sequence.0.literal", "sequence.7.schema", "sequence.x", "sequence.1.min.schema"):
        assert place_in_request(part, other, {"a": {"not": {}}}) is None
