"""Calls as bare objects, `{"name": ..., "parameters": {...}}`, several with semicolons between: Llama 3.1 to 3.3.

Found by the entry point `llama3_json`.

INVARIANT: without a marker only the name of a tool makes an object a call; any other JSON is an answer.
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
from asyncpage.text.tools.part import Part, any_of, beginning_without, literal, schema, separated, sequence
from asyncpage.text.tools.tool import Tool

TAG = "<|python_tag|>"

_OBJECT = r'(?=\{\s*"(?:name|type|id|function|parameters|arguments)"\s*:)'
# White space is taken once and for all: tried in every way, some that ends in nothing takes the cube of its length.
_START = regex.compile(rf"\s*+(?:<\|python_tag\|>)?+\s*+{_OBJECT}")
_BEHIND_TAG = regex.compile(rf"\s*+{_OBJECT}")
_NEXT = regex.compile(rf"\s*+[;,]?+\s*+(?:<\|python_tag\|>)?+\s*+{_OBJECT}")


class Llama3Json:
    """The format, whatever the template."""

    api = API
    name = "llama3_json"
    shows_control = False  # the tag alone is one, and the object behind it says enough

    def __init__(self, template: str) -> None:
        pass

    @staticmethod
    def fits(template: str) -> bool:
        return "<|start_header_id|>" in template and '"parameters"' in template

    def new_reader(self, tools: Sequence[Tool]) -> ReplyReader:
        return Llama3JsonReader(frozenset(tool.name for tool in tools))

    def structure(self, rule: CallRule) -> Part:
        calls = separated(any_of(*(_call(tool, rule) for tool in rule.tools)), "; ", rule.most)
        return calls if rule.must_call else any_of(calls, beginning_without("{", TAG))

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)


class Llama3JsonReader(JsonCallReader):
    """Calls stand where the answer begins, behind another call, or behind the tag."""

    def script(self) -> Script[None]:
        found = yield from self.match(_START, MOST_HEAD)
        while True:
            if found is not None and (yield from self.json_calls(TAG)):
                found = yield from self.match(_NEXT, MOST_HEAD)
                continue
            self.restore_markup()
            if not (yield from self.content(TAG)):
                return
            found = yield from self.match(_BEHIND_TAG, MOST_HEAD)


def _call(tool: Tool, rule: CallRule) -> Part:
    head = f'{{"name": {json.dumps(tool.name)}, "parameters": '
    return sequence(literal(head), schema(rule.schema_of(tool)), literal("}"))
