"""Calls behind `[TOOL_CALLS]`: a list of objects, or in newer templates a name and its arguments: Mistral's models.

Found by the entry point `mistral`.

INVARIANT: both forms are read, whatever the template; a constraint asks for the one that the template has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import regex

from asyncpage.text.reply import ReplyReader
from asyncpage.text.scripted_reader import Script
from asyncpage.text.tools.json_call import MOST_HEAD, JsonCallReader
from asyncpage.text.tools.parser import API, CallRule
from asyncpage.text.tools.part import Part, any_of, control, free, literal, repeat, schema, separated, sequence
from asyncpage.text.tools.tool import Tool

MARK, ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"

_LIST = regex.compile(r"\s*\[\s*(?=\{)")
# White space is taken once and for all: tried in every way, some that ends in nothing takes the cube of its length.
_NAMED = regex.compile(r"\s*+([\w.-]++)\s*+(?:\[CALL_ID\][\w-]*+)?+\s*+(?:\[ARGS\])?+\s*+(?=\{)")
_NEXT = regex.compile(r"\s*(?:,\s*(?=\{)|(\]))")


class Mistral:
    """The format in the form that a template has."""

    api = API
    name = "mistral"
    shows_control = True

    def __init__(self, template: str) -> None:
        self._is_named = ARGUMENTS in template

    @staticmethod
    def fits(template: str) -> bool:
        return MARK in template

    def new_reader(self, tools: Sequence[Tool]) -> ReplyReader:
        return MistralReader()

    def structure(self, rule: CallRule) -> Part:
        call = any_of(*(self._call(tool, rule) for tool in rule.tools))
        if self._is_named:
            calls = repeat(call, 1, rule.most)
        else:
            calls = sequence(control(MARK), literal(" ["), separated(call, ", ", rule.most), literal("]"))
        if rule.must_call:
            return calls
        return sequence(free(MARK), repeat(calls, 0, 1))

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._is_named:
            return f"{MARK}{name}{ARGUMENTS}{json.dumps(arguments, ensure_ascii=False)}"
        return f"{MARK} [{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}]"

    def _call(self, tool: Tool, rule: CallRule) -> Part:
        arguments = schema(rule.schema_of(tool))
        if self._is_named:
            return sequence(control(MARK), literal(tool.name), control(ARGUMENTS), arguments)
        head = f'{{"name": {json.dumps(tool.name)}, "arguments": '
        return sequence(literal(head), arguments, literal("}"))


class MistralReader(JsonCallReader):
    """Any name makes a call: behind the marker a model means one."""

    def script(self) -> Script[None]:
        while (yield from self.content(MARK)):
            if (yield from self.match(_LIST, MOST_HEAD)) is not None:
                yield from self._list()
                continue
            named = yield from self.match(_NAMED, MOST_HEAD)
            if named is None:
                named = self.broken_off(_NAMED)
                if named is None or "[" not in named[0]:  # the name may go on, or be none
                    self.restore_markup()
                    continue
                self._text = ""
            self.begin_call(named[1])
            yield from self.json_arguments((MARK,))

    def _list(self) -> Script[None]:
        while (yield from self.json_calls(MARK)):
            behind = yield from self.match(_NEXT, MOST_HEAD)
            if behind is None or behind[1]:
                return
        self.restore_markup()
