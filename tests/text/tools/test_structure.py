"""Answers drawn from what a constraint allows: the same format's reader finds the calls that it asks for."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from asyncpage.errors import RequestError
from asyncpage.grammar.automaton import Automaton
from asyncpage.grammar.compile import compile_source
from asyncpage.grammar.lexicon import Lexicon
from asyncpage.grammar.source import GrammarSource
from asyncpage.text.reasoning.registry import BUILT_IN as REASONING
from asyncpage.text.reply import CallArguments, CallBegun, ContentPart, PlainReader, ReasoningPart, ReplyPart
from asyncpage.text.tools.parameters import Parameter, held_parameters
from asyncpage.text.tools.parser import CallRule, ToolParser
from asyncpage.text.tools.part import (
    NOTHING,
    Part,
    any_of,
    free,
    from_source,
    literal,
    repeat,
    schema,
    sequence,
    to_source,
)
from asyncpage.text.tools.registry import BUILT_IN
from asyncpage.text.tools.tool import Tool

SEEDS = range(40)
WEATHER = Tool(
    "get_weather",
    "",
    {
        "type": "object",
        "properties": {
            "city": {"enum": ["Tokyo", "Zürich 京", 'a "b" </tool_call>']},
            "days": {"enum": [1, 2.5, None]},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    False,
)
PING = Tool("ping-1", "", None, True)


class Draw:
    """A random text of a structure; it knows the schemas of this file."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def text(self, part: Part) -> str:
        ((kind, value),) = [(key, value) for key, value in part.items() if key not in ("min", "max")]
        match kind:
            case "literal" | "control":
                return str(value)
            case "sequence":
                return "".join(map(self.text, value))
            case "any_of":
                return self.text(self.dice.choice(value))
            case "repeat":
                most = part["max"] if part["max"] is not None else part["min"] + 3
                return "".join(self.text(value) for _ in range(self.dice.randint(part["min"], most)))
            case "free":
                text = "".join(
                    self.dice.choices(["a", "<", "tool_call>", "[", "TOOL_CALLS]", "{", " ", "ü", "\n"], k=5)
                )
                return "" if any(marker in text for marker in value) else text
            case _:
                return json.dumps(self.value(value), ensure_ascii=self.dice.random() < 0.5)

    def value(self, schema: Mapping[str, Any]) -> Any:
        if "enum" in schema:
            return self.dice.choice(schema["enum"])
        if "properties" not in schema and schema.get("type") != "object":
            return self.dice.choice(["x", 1, True, [], {"a": None}])
        found = schema.get("properties", {}).items()
        required = schema.get("required", ())
        return {name: self.value(inner) for name, inner in found if name in required or self.dice.random() < 0.5}


def calls_of(parts: list[ReplyPart]) -> list[tuple[str, dict[str, Any]]]:
    texts: dict[int, str] = {}
    for part in parts:
        if isinstance(part, CallArguments):
            texts[part.index] = texts.get(part.index, "") + part.text
    return [(part.name, json.loads(texts[part.index])) for part in parts if isinstance(part, CallBegun)]


def fits(name: str, arguments: dict[str, Any]) -> bool:
    if name == "ping-1":
        return arguments == {}
    allowed = WEATHER.schema["properties"]
    return "city" in arguments and all(value in allowed[key]["enum"] for key, value in arguments.items())


def parsers() -> list[tuple[str, ToolParser]]:
    made = [(name, parser("")) for name, parser in BUILT_IN.items()]
    return [*made, ("mistral named", BUILT_IN["mistral"]("[ARGS]"))]


@pytest.mark.parametrize(("name", "parser"), parsers())
@pytest.mark.parametrize("most", [1, None])
def test_a_forced_answer_is_calls_that_follow_their_schemas_and_nothing_else(
    read: Any, name: str, parser: ToolParser, most: int | None
) -> None:
    tools = (WEATHER, PING)
    part = parser.structure(CallRule(tools, must_call=True, holds_all=True, most=most))
    several = 0
    for seed in SEEDS:
        parts = read([Draw(seed).text(part)], parser.new_reader(tools))
        calls = calls_of(parts)
        assert calls
        assert all(fits(*call) for call in calls)
        assert not [part for part in parts if isinstance(part, ContentPart)]
        several += len(calls) > 1
    assert bool(several) == (most is None)


@pytest.mark.parametrize(("name", "parser"), parsers())
def test_a_free_answer_calls_strict_tools_by_their_schema_or_none(read: Any, name: str, parser: ToolParser) -> None:
    tools = (WEATHER, PING)
    part = parser.structure(CallRule(tools, must_call=False, holds_all=False))
    called = free = 0
    for seed in SEEDS:
        calls = calls_of(read([Draw(seed).text(part)], parser.new_reader(tools)))
        assert all(arguments == {} for name, arguments in calls if name == "ping-1")
        called += bool(calls)
        free += not calls
    assert called
    assert free


@pytest.mark.parametrize("template", ["", "[ARGS]"])
@pytest.mark.parametrize("must_call", [True, False])
def test_mistrals_markers_may_be_control_tokens_and_no_other_control_token_may_come(
    template: str, must_call: bool
) -> None:
    part = BUILT_IN["mistral"](template).structure(CallRule((PING,), must_call=must_call, holds_all=True, most=1))
    words = [b"\xff[TOOL_CALLS]\xff", b"\xff[ARGS]\xff", b"\xff</s>\xff", b"[TOOL_CALLS]", b"Hi", b"ping-1", b"{}"]
    words += [b" [", b'{"name": "ping-1", "arguments": ', b"}]"]
    automaton = Automaton(compile_source(to_source(part, "tools")), Lexicon(words))
    call = [0, 5, 1, 6] if template else [0, 7, 8, 6, 9]
    for answer in (call, [3, *call[1:]]) if must_call else (call, [4, *call], [4, 3, *call[1:]]):
        state = automaton.start
        for token in answer:
            allowed = np.flatnonzero(np.unpackbits(automaton.mask(state), bitorder="little")).tolist()
            assert token in allowed
            assert 2 not in allowed
            state = automaton.advance(state, token)
        assert automaton.may_end(state)


def test_arguments_written_one_by_one_refuse_a_schema_over_all_of_them_by_its_keyword() -> None:
    for keyword, value in (("minProperties", 1), ("anyOf", []), ("required", ["nowhere"])):
        tool = Tool("f", "", {"type": "object", "properties": {}, keyword: value}, False)
        with pytest.raises(RequestError) as caught:
            BUILT_IN["pythonic"]("").structure(CallRule((tool,), must_call=True, holds_all=True))
        assert (caught.value.failure.status, caught.value.failure.param) == (400, keyword)
        assert caught.value.failure.code == "unsupported"


def test_definitions_go_along_with_each_parameter() -> None:
    inner, shared = {"$ref": "#/$defs/A"}, {"A": {"type": "string"}}
    schema = {"type": "object", "properties": {"a": inner, "b": {}}, "required": ["a"], "$defs": shared}
    found = held_parameters(Tool("f", "", schema, True), is_held=True)
    assert found == (Parameter("a", {**inner, "$defs": shared}, True), Parameter("b", {"$defs": shared}, False))


@pytest.mark.parametrize("name", REASONING)
@pytest.mark.parametrize("is_open", [True, False])
def test_thinking_may_stand_before_a_constrained_answer(read: Any, name: str, is_open: bool) -> None:
    parser = REASONING[name]("")
    part = parser.structure(literal("42"), is_open=is_open)
    thought = 0
    for seed in SEEDS:
        parts = read([Draw(seed).text(part)], parser.new_reader(PlainReader(), is_open=is_open))
        assert parts[-1] == ContentPart("42")
        assert all(isinstance(part, ReasoningPart) for part in parts[:-1])
        thought += len(parts) > 1
    assert thought


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (GrammarSource("json_object"), {"schema": {"type": "object"}}),
        (GrammarSource("json_schema", '{"type": "array"}'), {"schema": {"type": "array"}}),
        (GrammarSource("choice", '["a", "b"]'), {"any_of": [{"literal": "a"}, {"literal": "b"}]}),
        (GrammarSource("regex", "a+"), None),
        (GrammarSource("grammar", "root ::= x"), None),
    ],
)
def test_a_grammar_that_can_stand_beside_calls_becomes_a_part(source: GrammarSource, part: Part | None) -> None:
    assert from_source(source) == part
    if part is not None:
        assert from_source(to_source(part, "tools")) == part


def test_a_structure_is_written_as_any_json_is() -> None:
    part = sequence(literal('"ü'), repeat(any_of(free("<", ">"), NOTHING), 1, None), schema({"any_of": [{}], "a": [1]}))
    assert json.loads(to_source(part, "tools").text) == part
    assert json.loads(to_source({"any_of": []}, "tools").text) == {"any_of": []}


def test_one_that_grows_too_large_is_refused_before_all_of_it_is_written() -> None:
    def endless() -> Iterator[Part]:
        while True:
            yield schema({"$defs": {"A": {"description": "x" * 1000}}})

    with pytest.raises(RequestError) as caught:
        to_source({"sequence": endless()}, "tools")
    failure = caught.value.failure
    assert (failure.status, failure.code, failure.param) == (400, "grammar_too_large", "tools")
    assert str(1 << 20) in failure.message


@pytest.mark.parametrize("name", ["pythonic", "qwen3_coder"])
def test_definitions_that_every_argument_needs_count_for_each(name: str) -> None:
    shared = {"A": {"type": "integer", "description": "x" * 10_000}}
    for count, fits in ((50, True), (150, False)):
        properties = {f"a{at}": {"$ref": "#/$defs/A"} for at in range(count)}
        tool = Tool("f", "", {"type": "object", "properties": properties, "$defs": shared}, True)
        part = BUILT_IN[name]("").structure(CallRule((tool,), must_call=True, holds_all=True, most=1))
        with nullcontext() if fits else pytest.raises(RequestError, match="definitions"):
            to_source(part, "tools")
