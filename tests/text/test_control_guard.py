"""The guard: a client's characters never become a control token, and come out as they were written."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.errors import RequestError
from asyncpage.text.control_guard import NONCHARACTERS, ControlGuard

CONTROLS = ["<|end|>", "<|end|><|end|>", "aba", "[X]", "><"]
GUARD = chr(NONCHARACTERS[0])
WORDS = st.lists(st.sampled_from(["<|", "end", "|>", "a", "b", "ab", "[", "X", "]", "<", ">", "|", "<|end|>", " "]))


@settings(max_examples=300, deadline=None)
@given(first=WORDS, second=WORDS, template=st.sampled_from(["", "<", "<|", "|>", "ab", "a", "]", "text"]))
def test_no_control_token_begins_or_ends_with_a_clients_character(
    first: list[str], second: list[str], template: str
) -> None:
    guard = ControlGuard(CONTROLS, is_nfc=False)
    one, two = (guard.plain("".join(words), GUARD) for words in (first, second))
    text = template + one + template + two + template
    owners = "t" * len(template) + "c" * len(one) + "t" * len(template) + "c" * len(two) + "t" * len(template)
    for control in CONTROLS:
        for match in re.finditer(f"(?={re.escape(control)})", text):
            start, end = match.start(), match.start() + len(control)
            assert owners[start] + owners[end - 1] == "tt"
    assert one.replace(GUARD, "") == "".join(first)


def test_plain_text_is_left_as_it_is() -> None:
    guard = ControlGuard(CONTROLS, is_nfc=False)
    for text in ("", "hello", "x < y", "x [y] z", "quoted"):
        assert guard.plain(text, GUARD) == text


def test_keys_and_nested_values_are_guarded_and_other_values_kept() -> None:
    guard = ControlGuard(["<|end|>"], is_nfc=False)
    value = {"<|end|>": [{"a": "x<|end|>y"}, ("<|end|>",)], "n": 3, "none": None, "yes": True}
    broken = f"<{GUARD}|end|>"
    assert guard.plain_value(value, GUARD) == {
        broken: [{"a": f"x{broken}y"}, [broken]],
        "n": 3,
        "none": None,
        "yes": True,
    }


def test_text_that_becomes_a_control_token_when_normalised_is_guarded() -> None:
    guard = ControlGuard(["<K>"], is_nfc=True)
    assert guard.plain("<\u212a>", GUARD) == f"<{GUARD}K>"  # the Kelvin sign is a K in NFC


def test_the_guard_is_a_character_that_nobody_wrote() -> None:
    guard = ControlGuard(CONTROLS, is_nfc=False)
    first, second = chr(NONCHARACTERS[0]), chr(NONCHARACTERS[1])
    assert guard.choose(["x"]) == first
    assert guard.choose(["x", f"a{first}b"]) == second
    assert guard.choose(["x"], taken=first) == second
    with pytest.raises(RequestError, match="noncharacter"):
        guard.choose(["".join(map(chr, NONCHARACTERS))])


def test_a_control_token_of_one_character_is_refused_in_a_conversation() -> None:
    guard = ControlGuard(["\x04"], is_nfc=False)
    assert guard.plain("fine", GUARD) == "fine"
    with pytest.raises(RequestError, match="control token"):
        guard.plain("not\x04fine", GUARD)
