"""What a reasoning parser is: one way in which models mark what they think before they answer.

Parsers are found by entry points of the group `asyncpage.reasoning_parsers` (`registry.py`).

INVARIANT: what a parser does not take for thinking reaches the reader of the answer as it was written.
"""

from __future__ import annotations

from typing import Protocol

from asyncpage.text.reply import ReplyReader
from asyncpage.text.tools.part import Part

API = 1
"""The version of this contract."""


class ReasoningParser(Protocol):
    """A class of these is called with the text of the model's chat template ("" where it has none).

    `api`: the version of this contract that it was written for. `name`: what `--reasoning-parser` calls it.
    `shows_control`: the model may write its markers as control tokens, so an answer's text must show them.
    """

    api: int
    name: str
    shows_control: bool

    @staticmethod
    def fits(template: str) -> bool:
        """Whether a model with a chat template of this text may think in this way."""
        ...

    def is_open(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so leaves the model in the middle of thinking."""
        ...

    def new_reader(self, inner: ReplyReader, *, is_open: bool) -> ReplyReader:
        """Reads one answer; `inner` reads what is not thinking."""
        ...

    def structure(self, answer: Part, *, is_open: bool) -> Part:
        """The `answer`, with thinking before it."""
        ...
