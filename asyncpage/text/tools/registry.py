"""Finds tool parsers, the built-in ones and those of entry points, and chooses the one for a chat template.

The engine asks when it reads a model's files.

INVARIANT: "auto" chooses among the built-in parsers only; one of others serves where it is asked for by name.
"""

from __future__ import annotations

import json
from typing import Any

from asyncpage.core.plugin_group import PluginGroup, breaches_of_method
from asyncpage.text.reply import CallArguments, CallBegun
from asyncpage.text.template_traits import TRIAL_CALL, TemplateTraits
from asyncpage.text.tools.hermes import Hermes, Qwen
from asyncpage.text.tools.llama3_json import Llama3Json
from asyncpage.text.tools.mistral import Mistral
from asyncpage.text.tools.parser import API, ToolParser
from asyncpage.text.tools.pythonic import Pythonic
from asyncpage.text.tools.qwen3_coder import Qwen3Coder
from asyncpage.text.tools.tool import ANY_ARGUMENTS, Tool

AUTO = "auto"

# In the order in which "auto" asks them whether a template is theirs.
BUILT_IN: dict[str, type[ToolParser]] = {
    parser.name: parser for parser in (Hermes, Qwen, Qwen3Coder, Mistral, Pythonic, Llama3Json)
}

_METHODS = {
    "fits": ("template",),
    "new_reader": ("self", "tools"),
    "structure": ("self", "rule"),
    "call_text": ("self", "name", "arguments"),
}


def _breaches(parser: Any) -> tuple[str, ...]:
    unsaid = not isinstance(getattr(parser, "shows_control", None), bool)
    return (
        *(("'shows_control' must be True or False: whether its markers can be control tokens",) if unsaid else ()),
        *(breach for name, arguments in _METHODS.items() for breach in breaches_of_method(parser, name, arguments)),
    )


TOOL_PARSERS: PluginGroup[ToolParser] = PluginGroup(
    "asyncpage.tool_parsers",
    what="tool parser",
    flag="--tool-call-parser",
    api=API,
    built_in=BUILT_IN,
    breaches=_breaches,
)


def choose_tool_parser(name: str, template: str, traits: TemplateTraits) -> ToolParser | None:
    """The parser called `name`; for "auto" the one that reads what the template with this text and `traits` writes.

    A model whose template shows no tools is told of them in words, and asked for the commonest format. None where a
    template has a format of its own that no built-in parser reads. Errors: `UsageError` for a name that none has.
    """
    if name != AUTO:
        return TOOL_PARSERS.load(name, template)
    for known, parser in BUILT_IN.items():
        made = TOOL_PARSERS.load(known, template)
        is_its = any(_reads(made, text) for text in traits.call_texts) if traits.call_texts else parser.fits(template)
        if is_its:
            return made
    return None if traits.shows_tools else Hermes(template)


def _reads(parser: ToolParser, text: str) -> bool:
    """Whether the parser finds the call on trial in what the template makes of it."""
    name, arguments = TRIAL_CALL
    reader = parser.new_reader((Tool(name, "", ANY_ARGUMENTS, False),))
    parts = [*reader.feed(text), *reader.end()]
    given = "".join(part.text for part in parts if isinstance(part, CallArguments))
    try:
        return CallBegun(0, name) in parts and json.loads(given) == arguments
    except ValueError:
        return False
