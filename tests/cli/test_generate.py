"""Where `generate` takes its prompts from."""

from __future__ import annotations

import io

import pytest

from asyncpage.cli.generate import read_prompts
from asyncpage.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_arguments_are_prompts_as_they_are() -> None:
    assert read_prompts(["a ", "b"], Terminal()) == ["a ", "b"]


def test_without_arguments_the_whole_input_is_one_prompt() -> None:
    assert read_prompts([], io.StringIO("Dear all,\n\nwe are\n")) == ["Dear all,\n\nwe are"]


def test_a_dash_stands_for_the_input() -> None:
    assert read_prompts(["first", "-"], io.StringIO("second\n")) == ["first", "second"]


def test_nobody_waits_for_a_terminal_that_was_not_asked() -> None:
    with pytest.raises(UsageError, match="there is no prompt"):
        read_prompts([], Terminal("typed later"))


def test_an_empty_input_is_no_prompt() -> None:
    with pytest.raises(UsageError, match="the input is empty"):
        read_prompts([], io.StringIO("\n"))
