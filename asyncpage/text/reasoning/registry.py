"""Finds reasoning parsers, the built-in ones and those of entry points, and chooses the one for a chat template.

The engine asks when it reads a model's files.

INVARIANT: "auto" chooses among the built-in parsers only; one of others serves where it is asked for by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncpage.core.plugin_group import PluginGroup, breaches_of_method
from asyncpage.text.reasoning.parser import API, ReasoningParser
from asyncpage.text.reasoning.think import DeepSeekR1, MistralThink, Qwen3, SeedOss

AUTO, NONE = "auto", "none"

# In the order in which "auto" asks them whether a template is theirs.
BUILT_IN: dict[str, type[ReasoningParser]] = {
    parser.name: parser for parser in (DeepSeekR1, Qwen3, MistralThink, SeedOss)
}

_METHODS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "fits": (("template",), ()),
    "is_open": (("self", "prompt_end"), ()),
    "new_reader": (("self", "inner"), ("is_open",)),
    "structure": (("self", "answer"), ("is_open",)),
}


def _breaches(parser: Any) -> tuple[str, ...]:
    unsaid = not isinstance(getattr(parser, "shows_control", None), bool)
    return (
        *(("'shows_control' must be True or False: whether its markers can be control tokens",) if unsaid else ()),
        *(breach for name, taken in _METHODS.items() for breach in breaches_of_method(parser, name, *taken)),
    )


REASONING_PARSERS: PluginGroup[ReasoningParser] = PluginGroup(
    "asyncpage.reasoning_parsers",
    what="reasoning parser",
    flag="--reasoning-parser",
    api=API,
    built_in=BUILT_IN,
    breaches=_breaches,
)


def choose_reasoning_parser(name: str, template: str) -> ReasoningParser | None:
    """The parser called `name`; for "auto" the one whose markers the template's text has; None for "none".

    Errors: `UsageError` for a name that no parser has.
    """
    if name == NONE:
        return None
    if name != AUTO:
        return REASONING_PARSERS.load(name, template)
    fitting = next((parser for parser in BUILT_IN.values() if parser.fits(template)), None)
    return None if fitting is None else REASONING_PARSERS.load(fitting.name, template)
