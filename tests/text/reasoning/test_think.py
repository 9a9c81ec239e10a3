"""Thinking told from the answer, by markers in the answer or in the prompt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.text.reasoning.registry import BUILT_IN
from asyncpage.text.reply import (
    CallArguments,
    CallBegun,
    CallEnded,
    ContentPart,
    FilteredReader,
    PlainReader,
    ReasoningPart,
    ReplyPart,
    is_no_reasoning,
)
from asyncpage.text.tools.hermes import HermesReader

THINK = BUILT_IN["deepseek_r1"]("")


def thought(text: str) -> ReasoningPart:
    return ReasoningPart(text)


def said(text: str) -> ContentPart:
    return ContentPart(text)


@pytest.mark.parametrize(
    ("text", "is_open", "parts"),
    [
        ("<think>\nHm, 2 < 3.\n</think>\n\nYes. ", False, [thought("Hm, 2 < 3."), said("Yes. ")]),
        ("\n<think>a\n\nb</think>c", False, [thought("a\n\nb"), said("c")]),
        ("<think>\n\n</think>\n\nNo.", False, [said("No.")]),
        ("No thinking <think> here", False, [said("No thinking <think> here")]),
        (" \n Hello", False, [said(" \n Hello")]),
        ("<thin", False, [said("<thin")]),
        ("Hm.</think>Yes", True, [thought("Hm."), said("Yes")]),
        ("<think>Hm.</think>Yes</think>", True, [thought("Hm."), said("Yes</think>")]),
        ("Hm, </thi", True, [thought("Hm, </thi")]),
        ("Hm.\n", True, [thought("Hm.\n")]),
        ("Hm.\n</think>\n", True, [thought("Hm.")]),
        ("", True, []),
    ],
)
def test_thinking_ends_at_its_marker_however_the_text_is_cut(
    read: Any, text: str, is_open: bool, parts: list[ReplyPart]
) -> None:
    for pieces in ([text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))):
        assert read(pieces, THINK.new_reader(PlainReader(), is_open=is_open)) == parts


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deepseek_r1", "<think>a</think>b"),
        ("qwen3", "<think>a</think>b"),
        ("mistral", "[THINK]a[/THINK]b"),
        ("seed_oss", "<seed:think>a</seed:think>b"),
    ],
)
def test_every_family_has_its_markers(read: Any, name: str, text: str) -> None:
    assert read(list(text), BUILT_IN[name]("").new_reader(PlainReader(), is_open=False)) == [thought("a"), said("b")]


def test_calls_are_read_behind_the_thinking_and_not_in_it(read: Any) -> None:
    text = '<think>Maybe <tool_call>?</think>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    expected = [thought("Maybe <tool_call>?"), CallBegun(0, "f"), CallArguments(0, "{}"), CallEnded(0)]
    for pieces in ([text], list(text)):
        assert read(pieces, THINK.new_reader(HermesReader(), is_open=False)) == expected


def test_thinking_streams_as_it_comes() -> None:
    reader = THINK.new_reader(PlainReader(), is_open=True)
    assert list(reader.feed("Well, ")) == [thought("Well,")]
    assert list(reader.feed("so")) == [thought(" so")]
    assert list(reader.feed("</think>A")) == [said("A")]


def test_thinking_that_nobody_wants_is_left_out(read: Any) -> None:
    reader = FilteredReader(THINK.new_reader(PlainReader(), is_open=False), is_no_reasoning)
    assert read(list("<think>a</think>b"), reader) == [said("b")]


@pytest.mark.parametrize(
    ("end", "is_open"),
    [
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("", False),
    ],
)
def test_the_end_of_the_prompt_says_whether_the_model_is_thinking_already(end: str, is_open: bool) -> None:
    assert THINK.is_open(end) is is_open


@settings(max_examples=100, deadline=None)
@given(
    noise=st.lists(st.sampled_from(["<think>", "</think>", "<", "/think>", "a", " ", "\n", "ü"]), max_size=12),
    is_open=st.booleans(),
    width=st.integers(1, 5),
)
def test_noise_is_read_the_same_however_it_is_cut(read: Any, noise: list[str], is_open: bool, width: int) -> None:
    text = "".join(noise)
    whole = read([text], THINK.new_reader(PlainReader(), is_open=is_open))
    pieces = [text[at : at + width] for at in range(0, len(text), width)]
    assert read(pieces, THINK.new_reader(PlainReader(), is_open=is_open)) == whole
    kept = "".join(part.text for part in whole)
    shown = "|".join(part.text for part in whole)  # a marker may seem to be where thinking and answer meet
    assert sorted(kept.replace(" ", "").replace("\n", "")) == sorted(
        text.replace(" ", "")
        .replace("\n", "")
        .replace("</think>", "", text.count("</think>") - shown.count("</think>"))
        .replace("<think>", "", text.count("<think>") - shown.count("<think>"))
    )
