"""What a tool parser is: one format in which models write calls of tools.

Parsers are found by entry points of the group `asyncpage.tool_parsers` (`registry.py`). A model's chat template tells
which one serves it.

INVARIANT: what `call_text` writes and what `structure` allows, a reader of the same parser reads as these calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from asyncpage.text.reply import ReplyReader
from asyncpage.text.tools.part import Part
from asyncpage.text.tools.tool import ANY_ARGUMENTS, Tool

API = 1
"""The version of this contract."""


@dataclass(frozen=True, slots=True)
class CallRule:
    """What an answer may hold. `tools`: those that may be called. `must_call`: calls and nothing else.

    `holds_all`: every call's arguments follow their tool's schema; otherwise those of strict tools do.
    `most`: calls an answer may have, None for any number.
    """

    tools: tuple[Tool, ...]
    must_call: bool
    holds_all: bool
    most: int | None = None

    def schema_of(self, tool: Tool) -> Mapping[str, Any]:
        """What the tool's arguments are held to."""
        return tool.schema if self.is_held(tool) else ANY_ARGUMENTS

    def is_held(self, tool: Tool) -> bool:
        return self.holds_all or tool.strict


class ToolParser(Protocol):
    """A class of these is called with the text of the model's chat template ("" where it has none).

    `api`: the version of this contract that it was written for. `name`: what `--tool-call-parser` calls it.
    `shows_control`: the model may write its markers as control tokens, so an answer's text must show them.
    """

    api: int
    name: str
    shows_control: bool

    @staticmethod
    def fits(template: str) -> bool:
        """Whether a chat template with this text makes its model write calls in this format.

        Asked only where the template shows no earlier calls; those that it shows are read on trial.
        """
        ...

    def new_reader(self, tools: Sequence[Tool]) -> ReplyReader:
        """Reads one answer in which any of `tools` may be called."""
        ...

    def structure(self, rule: CallRule) -> Part:
        """What an answer that keeps `rule` may be.

        Errors: `RequestError` (400, code "unsupported") when the format cannot keep an argument's schema.
        """
        ...

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        """One call as the model would write it: what a prompt shows of calls where the template shows none."""
        ...
