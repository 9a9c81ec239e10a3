"""What a request's tools, and the parsers of its model, make of prompt and answer.

The body readers of every dialect call `plan_reply`, and give their call what it says.

INVARIANT: what a request asks of tool calls is either kept by what is planned here or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from asyncpage.errors import RequestError
from asyncpage.grammar.source import GrammarSource
from asyncpage.messages import ChatPrompt
from asyncpage.server.call import Call
from asyncpage.server.failure import invalid
from asyncpage.server.generate.call_fields import Setting
from asyncpage.server.generate.tool_use import ToolUse
from asyncpage.text.reasoning.parser import ReasoningParser
from asyncpage.text.reply import FilteredReader, PlainReader, ReplyReader, is_no_later_call, is_no_reasoning
from asyncpage.text.tools.parser import CallRule, ToolParser
from asyncpage.text.tools.part import Part, any_of, from_source, to_source
from asyncpage.text.tools.registry import TOOL_PARSERS

_ANY_PROMPT = ChatPrompt(({"role": "user", "content": ""},))


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """What a request's tools and the model's parsers make of prompt and answer.

    `template_tools`: for the chat template. `new_reader`: makes what reads a choice's text. `grammar`: what the answer
    must follow, None where anything goes; `grammar_param`: the field that asks for it; `grammar_schemas`: those that it
    is made of, by the fields that they came in. `shows_control`: the reader needs the text of control tokens.
    """

    template_tools: tuple[Mapping[str, Any], ...]
    new_reader: Callable[[], ReplyReader]
    grammar: GrammarSource | None
    grammar_param: str = ""
    grammar_schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shows_control: bool = False

    def applied_to(self, call: Call) -> Call:
        """The call whose answer is held to the grammar, and read."""
        sampling = replace(call.sampling, skip_special_tokens=False) if self.shows_control else call.sampling
        return replace(
            call,
            sampling=sampling,
            grammar=self.grammar,
            grammar_param=self.grammar_param,
            grammar_schemas=self.grammar_schemas,
            new_reader=self.new_reader,
        )


def plan_reply(
    use: ToolUse,
    setting: Setting,
    *,
    wants_reasoning: bool = True,
    prompt: ChatPrompt | None = None,
    structured: tuple[GrammarSource, str] | None = None,
) -> ReplyPlan:
    """What `use` makes of prompt and answer. `wants_reasoning` False: what the model thinks is left out.

    `prompt`: the conversation, for models whose thinking begins in the prompt (a user's message where it is None).
    `structured`: what an answer without calls must look like, and the field that says so.
    Errors: `RequestError` 400 when the model cannot do it, or not all of it at once.
    """
    parser = _parser_of(use, setting)
    asked = answer = None if structured is None else from_source(structured[0])
    if structured is not None and parser is not None:
        _check_both(use, structured[1], is_part=answer is not None)
    rule = None if parser is None else _rule_of(use, has_answer=structured is not None)
    if parser is not None and rule is not None:
        calls = _structure(parser, rule, use)
        answer = calls if answer is None else any_of(calls, answer)
    # A constraint that is no part of a structure is for the whole answer: then the model does not think.
    reasoning = setting.reasoning_parser if structured is None or answer is not None else None
    grammar = structured[0] if structured is not None and parser is None and reasoning is None else None
    is_open = reasoning is not None and reasoning.is_open(setting.prompt_end(prompt or _ANY_PROMPT))
    param = "tools" if structured is None else structured[1]
    if grammar is None and answer is not None:
        grammar = to_source(answer if reasoning is None else reasoning.structure(answer, is_open=is_open), param)
    return ReplyPlan(
        () if parser is None else tuple(tool.to_template() for tool in use.tools),
        _NewReader(use, parser, reasoning, is_open, wants_reasoning) if parser or reasoning else PlainReader,
        grammar,
        "" if grammar is None else param,
        {} if grammar is None or grammar.kind != "structure" else _schemas(use, param, asked),
        (parser is not None and parser.shows_control) or (reasoning is not None and reasoning.shows_control),
    )


def _parser_of(use: ToolUse, setting: Setting) -> ToolParser | None:
    """What reads the calls of an answer; None where there can be none. Errors: 400 when it is not known."""
    if not use.tools or use.choice == "none":
        return None
    if setting.tool_parser is None:
        raise invalid(
            "tools: this model's chat template makes it write calls in a format that no parser is known to read; serve "
            f"it with --tool-call-parser and one of {', '.join(TOOL_PARSERS.names())}",
            param="tools",
            code="no_tool_parser",
        )
    if use.choice == "auto" and not setting.auto_tool_choice:
        raise invalid(
            "tool_choice: this server lets no model choose to call tools (--no-enable-auto-tool-choice); name a "
            "function, or say required or none",
            param="tool_choice",
            code="unsupported",
        )
    return setting.tool_parser


def _structure(parser: ToolParser, rule: CallRule, use: ToolUse) -> Part:
    """The parser's structure. Errors: `RequestError` 400 naming the first tool whose schema it cannot keep."""
    try:
        return parser.structure(rule)
    except RequestError:
        for tool in rule.tools:
            try:
                parser.structure(replace(rule, tools=(tool,)))
            except RequestError as error:
                failure, place = error.failure, use.place_of(tool)
                raise invalid(f"{place}: {failure.message}", param=place, code=failure.code) from None
        raise


def _schemas(use: ToolUse, param: str, asked: Part | None) -> dict[str, Mapping[str, Any]]:
    """The schemas that calls and answer may be held to. `asked`: for an answer without calls, by the field `param`."""
    schemas = {use.place_of(tool): tool.schema for tool in use.tools}
    if asked is not None and "schema" in asked:
        schemas[param] = asked["schema"]
    return schemas


def _check_both(use: ToolUse, param: str, *, is_part: bool) -> None:
    """Errors: 400 when an answer cannot follow `param` and `use` at once."""
    if use.choice != "auto":
        raise invalid(
            f"tool_choice {use.choice} makes the answer a call, which cannot follow {param} too; leave one of them out",
            param="tool_choice",
        )
    if not is_part:
        raise invalid(
            f"{param}: an answer under a regular expression or a grammar cannot call tools; leave out tools, or say "
            "tool_choice none",
            param=param,
            code="unsupported",
        )


def _rule_of(use: ToolUse, *, has_answer: bool) -> CallRule | None:
    """What the calls of an answer are held to; None where nothing is. `has_answer`: the rest of it is held too."""
    is_forced = use.choice in ("required", "named")
    if not (is_forced or has_answer or any(tool.strict for tool in use.tools)):
        return None
    tools = tuple(tool for tool in use.tools if use.choice != "named" or tool.name == use.named)
    is_single = use.choice == "named" or not use.is_parallel
    return CallRule(tools, must_call=is_forced or has_answer, holds_all=is_forced, most=1 if is_single else None)


@dataclass(frozen=True, slots=True)
class _NewReader:
    """Makes the reader of a choice."""

    use: ToolUse
    parser: ToolParser | None
    reasoning: ReasoningParser | None
    is_open: bool
    wants_reasoning: bool

    def __call__(self) -> ReplyReader:
        reader: ReplyReader = PlainReader() if self.parser is None else self.parser.new_reader(self.use.tools)
        if self.parser is not None and not self.use.is_parallel:
            reader = FilteredReader(reader, is_no_later_call)
        if self.reasoning is not None:
            reader = self.reasoning.new_reader(reader, is_open=self.is_open)
            if not self.wants_reasoning:
                reader = FilteredReader(reader, is_no_reasoning)
        return reader
