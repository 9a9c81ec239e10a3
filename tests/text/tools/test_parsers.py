"""Calls in every format, as the formats' own documentation shows them and as models get them wrong."""

from __future__ import annotations

import ast
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.text.reply import CallArguments, CallBegun, CallEnded, ContentPart, ReplyPart
from asyncpage.text.tools.parser import ToolParser
from asyncpage.text.tools.registry import BUILT_IN
from asyncpage.text.tools.tool import Tool

NAMES = ("get_weather", "f", "search-2")
TOOLS = tuple(Tool(name, "", {"type": "object"}, False) for name in NAMES)

Call = tuple[str, dict[str, Any]]


def parser(name: str) -> ToolParser:
    return BUILT_IN[name]("")


def calls_in(parts: list[ReplyPart]) -> list[Call]:
    """Names and arguments, after a look at the order of what tells them."""
    calls: list[Call] = []
    is_open = False
    for part in parts:
        match part:
            case CallBegun(index, name):
                assert index == len(calls)
                assert not is_open
                calls.append((name, {}))
                is_open = True
            case CallArguments(index, text):
                assert index == len(calls) - 1
                assert is_open
                calls[index] = (calls[index][0], json.loads(text))
            case CallEnded(index):
                assert index == len(calls) - 1
                is_open = False
            case _:
                assert not is_open
    assert not is_open
    return calls


def content_in(parts: list[ReplyPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, ContentPart))


WEATHER: Call = ("get_weather", {"city": "Zürich 京", "days": 2})
MARKED: Call = ("f", {"text": 'a "quoted" </tool_call> [TOOL_CALLS] <tool_call>{"name"}', "deep": {"a": [{}, [1.5]]}})

# Format, what a model wrote, its calls, and what is said beside them.
DOCUMENTED: list[tuple[str, str, list[Call], str]] = [
    (
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich 京", "days": 2}}\n</tool_call>',
        [WEATHER],
        "",
    ),
    (
        "qwen",
        'I look.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "get_weather", '
        '"arguments": {"city": "Zürich 京", "days": 2}}\n</tool_call>',
        [("f", {}), WEATHER],
        "I look.",
    ),
    ("hermes", "<tool_call>" + json.dumps({"arguments": MARKED[1], "name": "f"}) + "</tool_call>", [MARKED], ""),
    ("hermes", '<tool_call>[{"name": "f", "arguments": {}}, {"name": "x"}]</tool_call>', [("f", {}), ("x", {})], ""),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call> done', [("f", {"a": 1})], " done"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', [("f", {"a": 1})], ""),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}, "id": "</tool_call>"}</tool_call>!', [("f", {})], "!"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_', [("f", {})], ""),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Zürich 京", "days": 2}}', [WEATHER], ""),
    (
        "llama3_json",
        '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "get_weather", "parameters": {"city": "Zürich 京", '
        '"days": 2}}',
        [("f", {}), WEATHER],
        "",
    ),
    ("llama3_json", '{"type": "function", "name": "f", "parameters": {"a": "}"}}', [("f", {"a": "}"})], ""),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Zürich 京", "days": 2}}, '
        '{"name": "f", "arguments": {}}]',
        [WEATHER, ("f", {})],
        "",
    ),
    ("mistral", 'Yes.[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]get_weather{}', [("f", {"a": 1}), ("get_weather", {})], "Yes."),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": "[TOOL_CALLS]"}', [("f", {"a": "[TOOL_CALLS]"})], ""),
    ("pythonic", "[get_weather(city='Zürich 京', days=2), f()]", [WEATHER, ("f", {})], ""),
    (
        "pythonic",
        "<|python_start|>[f(a=[True, None, {'b': (1, 2.5)}], c=\"it's\\n\\u00e9\", d=-3,)]<|python_end|>",
        [("f", {"a": [True, None, {"b": [1, 2.5]}], "c": "it's\né", "d": -3})],
        "",
    ),
    ("pythonic", 'Wait. [f(a=1)]', [], "Wait. [f(a=1)]"),
]  # fmt: skip

# What is no call, or breaks off before it is one.
PLAIN = [
    ("hermes", "Sure <"),
    ("hermes", "a <tool_cal"),
    ("hermes", "<tool_call>get the weather</tool_call> please\n"),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": NaN}, "name": "f"}</tool_call>'),
    ("hermes", "1 < 2 </tool_call>\n\n"),
    ("llama3_json", '{"answer": {"name": "f"}}'),
    ("llama3_json", '{"name": "nobody", "parameters": {}}'),
    ("llama3_json", '<|python_tag|>print(1)'),
    ("llama3_json", '{"name": "nobody", "param'),
    ("llama3_json", '{"name": "f'),
    ("mistral", "[TOOL_CALLS] nothing"),
    ("mistral", '[TOOL_CALLS] [{"nam'),
    ("pythonic", "[1, 2]"),
    ("pythonic", "[nobody(a=1)]"),
    ("pythonic", "[f(1)]"),
    ("pythonic", " [get_wea"),
    ("pythonic", "[nobody(a"),
    ("pythonic", "[f(1"),
    ("mistral", "[TOOL_CALLS] nothing "),
]  # fmt: skip


def all_cuts(text: str) -> list[list[str]]:
    """Whole, character by character, and in two at every place."""
    return [[text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))]


@pytest.mark.parametrize(("name", "text", "calls", "content"), DOCUMENTED)
def test_documented_calls_are_read_however_they_are_cut(
    read: Any, name: str, text: str, calls: list[Call], content: str
) -> None:
    whole = read([text], parser(name).new_reader(TOOLS))
    assert calls_in(whole) == calls
    assert content_in(whole) == content
    for pieces in all_cuts(text):
        assert read(pieces, parser(name).new_reader(TOOLS)) == whole


@pytest.mark.parametrize(("name", "text"), PLAIN)
def test_what_only_looks_like_a_call_is_content_to_the_last_character(read: Any, name: str, text: str) -> None:
    for pieces in all_cuts(text):
        assert read(pieces, parser(name).new_reader(TOOLS)) == [ContentPart(text)]


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x', '{"a": "x'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>', '{"a": 1,}'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": <tool_call>', '{"a": '),
        ("llama3_json", '{"name": "f", "parameters": {"a": [', '{"a": ['),
        ("mistral", '[TOOL_CALLS]f{"a": "\\', '{"a": "\\'),
        ("pythonic", "[f(a=1, ", '{"a": 1'),
    ],
)
def test_a_call_that_breaks_off_keeps_what_it_has(read: Any, name: str, text: str, arguments: str) -> None:
    for pieces in all_cuts(text):
        parts = read(pieces, parser(name).new_reader(TOOLS))
        assert parts[:3] == [CallBegun(0, "f"), CallArguments(0, arguments), CallEnded(0)]


def test_arguments_go_out_before_the_call_is_over() -> None:
    for name, head in (
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"text": "once upon'),
        ("llama3_json", '{"name": "f", "parameters": {"text": "once upon'),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"text": "once upon'),
    ):
        assert list(parser(name).new_reader(TOOLS).feed(head)) == [
            CallBegun(0, "f"),
            CallArguments(0, '{"text": "once upon'),
        ]
    assert list(parser("pythonic").new_reader(TOOLS).feed('[f(n=1, text="once')) == [
        CallBegun(0, "f"),
        CallArguments(0, "{"),
        CallArguments(0, '"n": 1'),
    ]


def test_content_is_not_held_longer_than_it_must(read: Any) -> None:
    reader = parser("hermes").new_reader(TOOLS)
    assert list(reader.feed("Hello")) == [ContentPart("Hello")]
    assert list(reader.feed(" <tool")) == []
    assert list(reader.feed("ing> ")) == [ContentPart(" <tooling>")]


TEXTS = st.one_of(
    st.text(max_size=12),
    st.lists(
        st.sampled_from(["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "\\", '"', "'", "{", "]", "\n", "ü", "京"]),
        max_size=4,
    ).map("".join),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(-1e300, 1e300), TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), st.dictionaries(KEYS, VALUES, max_size=3)), min_size=1, max_size=3)
PROSE = st.text("abc \nü京.", max_size=8).map(lambda text: text.strip() and f"{text.strip()}")


def object_text(call: Call, key: str, indent: int | None, is_ascii: bool) -> str:
    return json.dumps({"name": call[0], key: call[1]}, indent=indent, ensure_ascii=is_ascii)


def python_text(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"


def written(name: str, calls: list[Call], prose: str, indent: int | None, is_ascii: bool) -> str:
    """An answer with these calls, written from the formats' descriptions and not by what is tested."""
    match name:
        case "hermes":
            bodies = [object_text(call, "arguments", indent, is_ascii) for call in calls]
            return prose + "\n" + "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
        case "llama3_json":
            return "; ".join(object_text(call, "parameters", indent, is_ascii) for call in calls)
        case "mistral":
            return (
                prose + "[TOOL_CALLS] [" + ", ".join(object_text(c, "arguments", indent, is_ascii) for c in calls) + "]"
            )
        case "mistral named":
            bodies = [json.dumps(call[1], indent=indent, ensure_ascii=is_ascii) for call in calls]
            return prose + "".join(
                f"[TOOL_CALLS]{call[0]}[ARGS]{body}" for call, body in zip(calls, bodies, strict=True)
            )
        case _:
            text = "[" + ", ".join(map(python_text, calls)) + "]"
            if all("-" not in call[0] for call in calls):
                ast.parse(text)
            return text


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral", "mistral named", "pythonic"])
@settings(max_examples=40, deadline=None)
@given(
    calls=CALLS,
    prose=PROSE,
    indent=st.sampled_from([None, 1]),
    is_ascii=st.booleans(),
    cuts=st.lists(st.integers(0, 400)),
)
def test_random_calls_come_back_however_they_are_cut(
    read: Any, name: str, calls: list[Call], prose: str, indent: int | None, is_ascii: bool, cuts: list[int]
) -> None:
    text = written(name, calls, prose, indent, is_ascii)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(places)]
    format = parser(name.split()[0])
    parts = read([text], format.new_reader(TOOLS))
    assert calls_in(parts) == calls
    assert content_in(parts) == (prose if name.startswith(("hermes", "mistral")) else "")
    assert read(pieces, format.new_reader(TOOLS)) == parts


# One goes by the parameters' schemas, which these tools lack.
@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "qwen3_coder"])
@settings(max_examples=25, deadline=None)
@given(call=CALLS.map(lambda calls: calls[0]))
def test_what_a_parser_writes_for_a_prompt_it_reads_as_the_same_call(read: Any, name: str, call: Call) -> None:
    text = parser(name).call_text(*call)
    assert calls_in(read([text], parser(name).new_reader(TOOLS))) == [call]


MARKUP = (
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    '"name"',
    '"arguments"',
    "f(",
    "a=",
)
NOISE = st.lists(st.sampled_from([*MARKUP, *"[]{}():,'\"\\ \nx1ü", ": ", '"f"', '"parameters"']), max_size=25)


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=100, deadline=None)
@given(noise=NOISE, width=st.integers(1, 9))
def test_noise_of_markup_is_read_the_same_however_it_is_cut(read: Any, name: str, noise: list[str], width: int) -> None:
    text = "".join(noise)
    whole = read([text], parser(name).new_reader(TOOLS))
    assert read([text[at : at + width] for at in range(0, len(text), width)], parser(name).new_reader(TOOLS)) == whole
    begun = [part.index for part in whole if isinstance(part, CallBegun)]
    assert begun == [part.index for part in whole if isinstance(part, CallEnded)] == list(range(len(begun)))
    if not begun:
        assert whole == ([ContentPart(text)] if text else [])
