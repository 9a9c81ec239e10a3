"""Calls as tags: values without quotes, read by their parameter's schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.errors import RequestError
from asyncpage.text.reply import CallArguments, CallBegun, ContentPart, ReplyPart
from asyncpage.text.tools.parser import CallRule
from asyncpage.text.tools.qwen3_coder import Qwen3Coder
from asyncpage.text.tools.tagged_value import json_value, types_of, value_part
from asyncpage.text.tools.tool import Tool

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "mode": {"$ref": "#/$defs/Mode"},
        "rest": {"type": "object"},
        "any": {},
    },
    "required": ["text"],
    "$defs": {"Mode": {"enum": ["fast", "slow"]}},
}
TOOLS = (Tool("run", "", SCHEMA, False), Tool("ping", "", None, False))
FORMAT = Qwen3Coder("")


def call(name: str, **values: str) -> str:
    given = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


def calls_in(parts: list[ReplyPart]) -> list[tuple[str, Any]]:
    texts: dict[int, str] = {}
    for part in parts:
        if isinstance(part, CallArguments):
            texts[part.index] = texts.get(part.index, "") + part.text
    return [(part.name, json.loads(texts[part.index])) for part in parts if isinstance(part, CallBegun)]


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        (call("ping"), [("ping", {})], ""),
        (
            "I run.\n" + call("run", text="a\n  b", count="3") + "\n" + call("ping"),
            [("run", {"text": "a\n  b", "count": 3}), ("ping", {})],
            "I run.",
        ),
        (
            call("run", text="42", maybe="null", mode="fast"),
            [("run", {"text": "42", "maybe": None, "mode": "fast"})],
            "",
        ),
        (call("run", text='<tool_call>"\\', maybe="nil"), [("run", {"text": '<tool_call>"\\', "maybe": "nil"})], ""),
        (call("run", text="", rest='{"a": [1]}'), [("run", {"text": "", "rest": {"a": [1]}})], ""),
        (call("run", rest="{'a': True}", count="many"), [("run", {"rest": {"a": True}, "count": "many"})], ""),
        (call("run", any="[1, 2]"), [("run", {"any": [1, 2]})], ""),
        (call("other", x="1", y="Zürich 京"), [("other", {"x": 1, "y": "Zürich 京"})], ""),
        ("<function=ping>\n</function> done", [("ping", {})], " done"),
        ("<tool_call><function=run><parameter=text>a</function></tool_call>", [("run", {"text": "a"})], ""),
        ("<tool_call>\nrun it</tool_call>", [], "<tool_call>\nrun it</tool_call>"),
        ("<function", [], "<function"),
        ("<function=<function=ping>\n</function>", [("ping", {})], "<function="),
    ],
)
def test_tags_are_read_as_calls_however_they_are_cut(read: Any, text: str, calls: list[Any], content: str) -> None:
    whole = read([text], FORMAT.new_reader(TOOLS))
    assert calls_in(whole) == calls
    assert "".join(part.text for part in whole if isinstance(part, ContentPart)) == content
    for pieces in (list(text), *([text[:at], text[at:]] for at in range(1, len(text)))):
        assert read(pieces, FORMAT.new_reader(TOOLS)) == whole


def test_strings_go_out_as_they_come() -> None:
    reader = FORMAT.new_reader(TOOLS)
    told = [*reader.feed('<function=run>\n<parameter=text>\nonce "up'), *reader.feed("on\n</para"), *reader.feed("x")]
    assert "".join(part.text for part in told if isinstance(part, CallArguments)) == '{"text": "once \\"upon\\n</parax'


TEXTS = st.lists(st.sampled_from(["a", "\n", "<", "</parameter", '"', "\\", " ", "京", "<tool_call>"]), max_size=6).map(
    "".join
)


@settings(max_examples=80, deadline=None)
@given(
    text=TEXTS,
    count=st.integers(),
    rest=st.dictionaries(TEXTS, st.integers() | TEXTS, max_size=2),
    width=st.integers(1, 7),
)
def test_random_values_come_back(read: Any, text: str, count: int, rest: dict[str, Any], width: int) -> None:
    arguments = {"text": text, "count": count, "rest": rest}
    written = FORMAT.call_text("run", arguments)
    whole = read([written], FORMAT.new_reader(TOOLS))
    assert calls_in(whole) == [("run", arguments)]
    pieces = [written[at : at + width] for at in range(0, len(written), width)]
    assert read(pieces, FORMAT.new_reader(TOOLS)) == whole


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": [1, "a", None, 2.5, True]}, {"integer", "string", "null", "number", "boolean"}),
        ({"const": []}, {"array"}),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Mode"}]}, {"string"}),
        ({"anyOf": [{"type": "string"}, {}]}, None),
        ({"$ref": "#/$defs/Nothing"}, None),
        ({"$ref": "#/$defs/Loop"}, None),
        ({"type": 5}, None),
        ({"anyOf": 5, "enum": 5}, None),
        ({"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}]}, {"null", "integer"}),
        (True, None),
        (None, None),
    ],
)
def test_types_are_those_that_a_schema_allows_whatever_it_is(schema: Any, types: set[str] | None) -> None:
    tree = {"oneOf": [{"type": "integer"}, {"$ref": "#/$defs/Tree"}]}
    root = {"$defs": {"Mode": {"enum": ["fast"]}, "Loop": {"$ref": "#/$defs/Loop"}, "Tree": tree}}
    assert types_of(schema, root) == types


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", {"string", "integer"}, 5),
        ("5", {"string"}, "5"),
        ("5.0", {"integer"}, 5.0),
        ("5.5", {"integer"}, "5.5"),
        ("5", {"number"}, 5),
        ("None", {"null"}, None),
        ("true", {"boolean"}, True),
        ("yes", {"boolean"}, "yes"),
        ('"a"', None, "a"),
        ("a", None, "a"),
    ],
)
def test_a_value_is_a_string_unless_it_can_be_what_is_allowed(text: str, types: set[str] | None, value: Any) -> None:
    assert json.loads(json_value(text, None if types is None else frozenset(types))) == value


def test_a_constraint_on_strings_that_needs_quotes_is_refused_by_its_keyword() -> None:
    for schema, keyword in (
        ({"type": "string", "minLength": 1}, "minLength"),
        ({"type": "string", "pattern": "a"}, "pattern"),
        ({"enum": ["</parameter>"]}, "enum"),
        ({"anyOf": [{"type": "null"}, {"type": "string", "format": "date"}]}, "format"),
        ({"anyOf": [{"type": "number"}, {"type": "string"}], "minimum": 3}, "minimum"),
        ({"type": "string", "anyOf": [{"const": "a"}, {"const": "b"}]}, "anyOf"),
    ):
        tool = Tool("f", "", {"type": "object", "properties": {"a": schema}}, True)
        with pytest.raises(RequestError) as caught:
            FORMAT.structure(CallRule((tool,), must_call=True, holds_all=False))
        assert (caught.value.failure.param, caught.value.failure.code) == (keyword, "unsupported")


def test_parts_are_free_text_names_or_json() -> None:
    free = {"free": ["</parameter>", "</function>", "<parameter="]}
    assert value_part({"type": "string", "title": "A"}, {}) == free
    assert value_part({"type": "integer", "minimum": 3}, {}) == {"schema": {"type": "integer", "minimum": 3}}
    assert value_part({"$ref": "#/$defs/Mode"}, SCHEMA) == {"any_of": [{"literal": "fast"}, {"literal": "slow"}]}
    assert value_part({"type": ["string", "null"]}, {}) == {"any_of": [free, {"schema": {"type": "null"}}]}


@pytest.mark.parametrize("depth", [3, 15, 300])
def test_alternatives_to_which_many_ways_lead_are_looked_at_once(depth: int) -> None:
    """Eight ways from each level to the next: to the last of 15 there are 2^45."""
    levels: dict[str, Any] = {f"L{at}": {"anyOf": [{"$ref": f"#/$defs/L{at + 1}"}] * 8} for at in range(depth)}
    last = {"anyOf": [{"const": "a"}, {"type": "integer"}, {"$ref": "#/$defs/L0"}]}
    root = {"$defs": {**levels, f"L{depth}": last}}
    assert types_of({"$ref": "#/$defs/L0"}, root) == {"string", "integer"}
    made = value_part({"$ref": "#/$defs/L0"}, root)
    assert made == {"any_of": [{"literal": "a"}, {"schema": {**root, "type": "integer"}}]}
