"""The tools that a request may use, and how an answer is then read.

The body readers make a `ToolUse` of their API's own fields; `plan_reply` says what it means for prompt and answer.

INVARIANT: a use that this server cannot keep to is refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from asyncpage.grammar.source import GrammarSource
from asyncpage.messages import ChatPrompt
from asyncpage.server.call_fields import Setting
from asyncpage.server.fields import Fields
from asyncpage.server.unsupported import unsupported
from asyncpage.text.reply import PlainReader, ReplyReader


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters`: a JSON schema, None for any."""

    name: str
    description: str
    parameters: Mapping[str, Any] | None
    strict: bool

    def to_template(self) -> dict[str, Any]:
        """As chat templates expect it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`named`: the one that must be called, where `choice` is "named". `is_parallel`: several calls may be made."""

    tools: tuple[Tool, ...] = ()
    choice: Literal["none", "auto", "required", "named"] = "auto"
    named: str = ""
    is_parallel: bool = True


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """What a use of tools means. `grammar`: what the answer must follow, None where it is free.

    `grammar_param`: the field that asks for it. `shows_control`: the reader needs the text of control tokens.
    """

    template_tools: tuple[Mapping[str, Any], ...]
    new_reader: Callable[[], ReplyReader]
    grammar: GrammarSource | None
    grammar_param: str = ""
    shows_control: bool = False


def plan_reply(
    use: ToolUse,
    setting: Setting,
    *,
    wants_reasoning: bool = True,
    prompt: ChatPrompt | None = None,
    structured: tuple[GrammarSource, str] | None = None,
) -> ReplyPlan:
    """`structured`: what an answer without calls must look like, and the field that says so.

    Errors: 400 for what this server cannot keep to.
    """
    if use.tools and use.choice != "none":
        raise unsupported("tools", "tool calls")
    grammar, param = structured or (None, "")
    return ReplyPlan((), PlainReader, grammar, param)


def read_tools(fields: Fields) -> ToolUse:
    """The tools of a chat completion's body. Errors: 400 naming the field."""
    if fields.value("tools"):
        raise unsupported(fields.name_of("tools"), "tool calls")
    return ToolUse(is_parallel=fields.boolean("parallel_tool_calls") is not False)
