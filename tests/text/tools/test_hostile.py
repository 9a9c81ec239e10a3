"""Answers made to be read slowly: what a reader goes over in all grows with their length and no faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncpage.text import scripted_reader
from asyncpage.text.reply import CallBegun, ContentPart
from asyncpage.text.tools import json_call, pythonic, qwen3_coder
from asyncpage.text.tools.registry import BUILT_IN
from asyncpage.text.tools.tool import Tool

TOOLS = (Tool("f", "", {"type": "object"}, False),)

# A piece to repeat. In some, every one begins a string or a list that no other ends.
PIECES = {
    "hermes": ("<tool_call>", '<tool_call>{\\"', '<tool_call>{"a":[', "<tool_cal", '<tool_call>{"name": "f", "x":{\\"'),
    "llama3_json": ("<|python_tag|>", '<|python_tag|>{"id":\\"', '<|python_tag|>{"name": {'),
    "mistral": ("[TOOL_CALLS]", '[TOOL_CALLS] [{\\"', "[TOOL_CALLS]f", "[TOOL_CALLS]f{"),
    "pythonic": ("<|python_start|>", "<|python_start|>[f(a=", "<|python_start|>[f(a=[", "<|python_start|>[f(a='\\'"),
    "qwen3_coder": ("<tool_call>", "<tool_call><function=", "<tool_call><function=f><parameter=a>", "</parameter"),
}
CASES = [(name, piece) for name, pieces in PIECES.items() for piece in pieces]

Count = Callable[[], int]


@pytest.fixture
def gone_over(monkeypatch: Any) -> Count:
    """Characters that the readers' searches have gone over."""
    count = 0

    def spy_on(owner: Any, name: str, cost: Callable[[tuple[Any, ...], Any], int]) -> None:
        real = getattr(owner, name)

        def spy(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            result = real(*arguments, **named)
            count += cost(arguments, result)
            return result

        monkeypatch.setattr(owner, name, spy)

    def searched(arguments: tuple[Any, ...], result: Any) -> int:
        return len(arguments[0])

    for module in (scripted_reader, qwen3_coder):
        spy_on(module, "first_of", searched)
    for span in (json_call.JsonSpan, pythonic.LiteralSpan):
        spy_on(span, "scan", lambda arguments, result: result[0] - arguments[2])
    return lambda: count


@pytest.mark.parametrize(("name", "piece"), CASES)
def test_what_is_gone_over_grows_with_the_length(name: str, piece: str, gone_over: Count) -> None:
    text = piece * (100_000 // len(piece))
    reader = BUILT_IN[name]("").new_reader(TOOLS)
    reader.feed(text)
    reader.end()
    # A slice is searched again at each marker in it; and some may be read again, up to a bound.
    assert gone_over() <= len(text) * (scripted_reader.SLICE // len(piece) + 10) + 3 * scripted_reader.MOST_READ_AGAIN


@pytest.mark.parametrize("name", ["llama3_json", "mistral", "pythonic"])
def test_white_space_that_ends_in_nothing_is_not_tried_in_every_way(name: str) -> None:
    text = {"llama3_json": '{"name": "f", "parameters": {}}', "mistral": "[TOOL_CALLS]f", "pythonic": "[f()"}[name]
    reader = BUILT_IN[name]("").new_reader(TOOLS)
    parts = [*reader.feed(text + " " * 30_000 + "x"), *reader.end()]  # a cube of steps would take days
    said = "".join(part.text for part in parts if isinstance(part, ContentPart))
    assert said.endswith(" " * 30_000 + "x")


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("width", [997, 5000])
def test_hostile_answers_are_read_the_same_however_they_are_cut(read: Any, name: str, width: int) -> None:
    for piece in PIECES["hermes" if name == "qwen" else name]:
        text = piece * (40_000 // len(piece))
        whole = read([text], BUILT_IN[name]("").new_reader(TOOLS))
        cut = [text[at : at + width] for at in range(0, len(text), width)]
        assert read(cut, BUILT_IN[name]("").new_reader(TOOLS)) == whole
        if CallBegun(0, "f") not in whole and name != "qwen3_coder":
            assert whole == [ContentPart(text)]


def test_a_call_behind_one_that_is_broken_is_found(read: Any) -> None:
    text = '<tool_call>{"name: "f", "arguments": {}}</tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>'
    parts = read([text], BUILT_IN["hermes"]("").new_reader(TOOLS))
    assert CallBegun(0, "f") in parts
    assert parts[0] == ContentPart('<tool_call>{"name: "f", "arguments": {}}</tool_call>')


def test_values_too_long_to_wait_for_are_passed_on_as_text(read: Any) -> None:
    most = json_call.MOST_HELD
    for size, is_number in ((most - 1, True), (most, True), (most + 1, False), (most + 20, False), (most + 40, False)):
        text = f"<function=f><parameter=a>{'1'.rjust(size)}</parameter></function>"
        made = [
            read(pieces, BUILT_IN["qwen3_coder"]("").new_reader(TOOLS))
            for pieces in ([text], [text[: most + 30], text[most + 30 :]])
        ]
        assert made[0] == made[1]
        arguments = made[0][1].text
        assert (arguments == '{"a": 1}') is is_number
        assert is_number or arguments == '{"a": "' + "1".rjust(size) + '"}'
