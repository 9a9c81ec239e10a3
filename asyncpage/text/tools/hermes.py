"""Calls as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3, SmolLM2 and others.

Found by the entry points `hermes` and `qwen`.

INVARIANT: a marker inside of a JSON string is none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from asyncpage.text.reply import ReplyReader
from asyncpage.text.scripted_reader import Script
from asyncpage.text.tools.json_call import JsonCallReader
from asyncpage.text.tools.parser import API, CallRule
from asyncpage.text.tools.part import Part, any_of, free, in_a_row, literal, repeat, schema, sequence
from asyncpage.text.tools.tool import Tool

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes:
    """The format, whatever the template."""

    api = API
    name = "hermes"
    shows_control = False

    def __init__(self, template: str) -> None:
        pass

    @staticmethod
    def fits(template: str) -> bool:
        return OPEN in template and '"arguments"' in template

    def new_reader(self, tools: Sequence[Tool]) -> ReplyReader:
        return HermesReader()

    def structure(self, rule: CallRule) -> Part:
        call = any_of(*(self._call(tool, rule) for tool in rule.tools))
        if rule.must_call:
            return in_a_row(call, "\n", rule.most)
        return sequence(repeat(sequence(free(OPEN), call), 0, rule.most), free(OPEN))

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"{OPEN}\n{body}\n{CLOSE}"

    def _call(self, tool: Tool, rule: CallRule) -> Part:
        head = f'{OPEN}\n{{"name": {json.dumps(tool.name)}, "arguments": '
        return sequence(literal(head), schema(rule.schema_of(tool)), literal(f"}}\n{CLOSE}"))


class Qwen(Hermes):
    """The same by the name that users of Qwen models look for."""

    name = "qwen"


class HermesReader(JsonCallReader):
    """Any name makes a call: between its markers a model means one."""

    def script(self) -> Script[None]:
        while (yield from self.content(OPEN)):
            if (yield from self.json_calls(CLOSE, OPEN)):
                yield from self.skip_markup(CLOSE)
            else:
                self.restore_markup()
