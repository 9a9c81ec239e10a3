"""Answers that end in the middle of a call, as those do that have become long enough."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.text.reply import CallArguments, CallBegun, CallEnded, ContentPart
from asyncpage.text.tools.python_literal import begun_json, to_json
from asyncpage.text.tools.registry import BUILT_IN
from asyncpage.text.tools.tool import Tool

TOOLS = (Tool("f", "", {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}, False),)
ARGUMENTS = '{"a": "x<y", "n": 12}'

# Format, what stands before a call, the call up to where its name is known, and the rest of it.
CALLS = [
    ("hermes", "ok", '\n<tool_call>\n{"name": "f"', ', "arguments": ' + ARGUMENTS + "}\n</tool_call>"),
    ("mistral", "ok", '[TOOL_CALLS] [{"name": "f"', ', "arguments": ' + ARGUMENTS + "}]"),
    ("mistral", "ok", "[TOOL_CALLS]f[", "ARGS]" + ARGUMENTS),
    ("llama3_json", "", '{"name": "f"', ', "parameters": ' + ARGUMENTS + "}"),
    ("llama3_json", "ok", '<|python_tag|>{"name": "f"', ', "parameters": ' + ARGUMENTS + "}"),
    ("pythonic", "", "[f(", 'a="x<y", n=12)]'),
    ("pythonic", "ok", "<|python_start|>[f(", "a='x<y', n=12)]<|python_end|>"),
    (
        "qwen3_coder",
        "ok",
        "\n<tool_call>\n<function=f>",
        "\n<parameter=a>\nx<y\n</parameter>\n<parameter=n>\n12\n</parameter>\n</function>\n</tool_call>",
    ),
]


@pytest.mark.parametrize(("name", "said", "head", "rest"), CALLS)
def test_a_call_is_told_from_its_name_on_and_nothing_of_it_is_content(
    read: Any, name: str, said: str, head: str, rest: str
) -> None:
    longest = ""
    for size in range(len(rest) + 1):
        text = said + head + rest[:size]
        parts = read([text], BUILT_IN[name]("").new_reader(TOOLS))
        assert read(list(text), BUILT_IN[name]("").new_reader(TOOLS)) == parts
        arguments = "".join(part.text for part in parts if isinstance(part, CallArguments))
        assert [part for part in parts if not isinstance(part, CallArguments)] == [
            *([ContentPart(said)] if said else []),
            CallBegun(0, "f"),
            CallEnded(0),
        ]
        assert ARGUMENTS.startswith(arguments)
        assert arguments.startswith(longest) or name == "qwen3_coder"  # there a bracket may yet begin a tag
        longest = arguments
    assert json.loads(longest) == json.loads(ARGUMENTS)


@pytest.mark.parametrize(("name", "said", "head", "rest"), CALLS)
def test_what_has_no_name_yet_is_content(read: Any, name: str, said: str, head: str, rest: str) -> None:
    for size in range(len(head)):
        text = said + head[:size]
        for pieces in ([text], list(text)):
            assert read(pieces, BUILT_IN[name]("").new_reader(TOOLS)) == ([ContentPart(text)] if text else [])


def test_a_second_call_is_told_from_its_name_on_too(read: Any) -> None:
    for pieces in (["[f(), f(a='b"], list("[f(), f(a='b")):
        assert read(pieces, BUILT_IN["pythonic"]("").new_reader(TOOLS)) == [
            CallBegun(0, "f"),
            CallArguments(0, "{}"),
            CallEnded(0),
            CallBegun(1, "f"),
            CallArguments(1, '{"a": "b'),
            CallEnded(1),
        ]


def test_what_no_argument_begins_with_stays_content(read: Any) -> None:
    parts = read(["[f(a=1 and so on"], BUILT_IN["pythonic"]("").new_reader(TOOLS))
    assert parts[-1] == ContentPart("a=1 and so on")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text("ab'\"\\\n\x00é\u2028😀 ", max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab'", max_size=2), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(value=VALUES, at=st.integers(0, 200), is_json=st.booleans())
def test_the_beginning_of_a_literal_is_the_beginning_of_its_json(value: Any, at: int, is_json: bool) -> None:
    text = json.dumps(value) if is_json else repr(value)
    found = begun_json(text[:at])
    assert found is not None
    whole = json.dumps(json.loads(to_json(text) or ""), ensure_ascii=False)
    joined = found.encode("utf-16", "surrogatepass").decode("utf-16")  # the two halves of a character, if it has such
    assert whole.replace(" ", "").startswith(joined.replace(" ", ""))


@pytest.mark.parametrize(
    ("text", "begun"),
    [
        ("", ""),
        ("'''a", '"a'),
        ('"""a""', '"a\\"\\"'),
        ("r'a\\n", '"a\\\\n'),
        ("-", ""),
        ("1.5e-", ""),
        ("12", ""),
        ("Tr", ""),
        ("True", "true"),
        ("[1, 2", "[1,"),
        ("{'a': (1, ", '{"a":[1,'),
        ("'a\\x4", '"a'),
        ("'a\\ud83d\\ude", '"a'),
        ("'a\\ud83d\\", '"a'),
        ("'a\\", '"a'),
        ("x", None),
        ("1 and", None),
        ("'a' b", None),
    ],
)
def test_beginnings_are_told_as_far_as_they_are_sure(text: str, begun: str | None) -> None:
    assert begun_json(text) == begun
