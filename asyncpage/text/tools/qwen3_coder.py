"""Calls as tags, `<function=f><parameter=a>1</parameter></function>`: Qwen3-Coder, Qwen 3.5, Nemotron 3 and others.

Found by the entry point `qwen3_coder`.

INVARIANT: a value is a string unless its parameter's schema allows something else that it can be. Where the text breaks
off, a string goes out as far as it came, and another value, which is known when it is whole, not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import regex

from asyncpage.text.reply import ReplyReader
from asyncpage.text.scripted_reader import Script, ScriptedReader, first_of, held_behind
from asyncpage.text.tools.json_call import MOST_HEAD, MOST_HELD
from asyncpage.text.tools.parameters import held_parameters
from asyncpage.text.tools.parser import API, CallRule
from asyncpage.text.tools.part import Part, any_of, free, in_a_row, literal, optional, repeat, sequence
from asyncpage.text.tools.tagged_value import ENDS, TEXT_ONLY, free_value, json_value, types_of, value_part
from asyncpage.text.tools.tool import Tool

OPEN, CLOSE, FUNCTION = "<tool_call>", "</tool_call>", "<function="

# A name is taken once and for all: without its end, every shorter one would be tried.
_FUNCTION = regex.compile(r"\s*<function=([^<>\s]++)>")
_NAME = regex.compile(r"([^<>\s]++)>")
_PARAMETER = regex.compile(r"\s*<parameter=([^>\n]++)>")
_END = regex.compile(r"\s*</function>")
_LONGEST_END = max(map(len, ENDS))


class Qwen3Coder:
    """The format, whatever the template."""

    api = API
    name = "qwen3_coder"
    shows_control = False

    def __init__(self, template: str) -> None:
        pass

    @staticmethod
    def fits(template: str) -> bool:
        return FUNCTION in template and "<parameter=" in template

    def new_reader(self, tools: Sequence[Tool]) -> ReplyReader:
        return Qwen3CoderReader(tools)

    def structure(self, rule: CallRule) -> Part:
        call = any_of(*(_call(tool, rule) for tool in rule.tools))
        if rule.must_call:
            return in_a_row(call, "\n", rule.most)
        return sequence(repeat(sequence(free(OPEN, FUNCTION), call), 0, rule.most), free(OPEN, FUNCTION))

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        given = "".join(f"<parameter={key}>\n{_written(value)}\n</parameter>\n" for key, value in arguments.items())
        return f"{OPEN}\n<function={name}>\n{given}</function>\n{CLOSE}"


class Qwen3CoderReader(ScriptedReader):
    """Any name makes a call: between its tags a model means one."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._types: dict[tuple[str, str], frozenset[str] | None] = {}  # of parameters by function and name
        super().__init__()

    def script(self) -> Script[None]:
        while marker := (yield from self.content(OPEN, FUNCTION)):
            found = yield from self.match(_FUNCTION if marker == OPEN else _NAME, MOST_HEAD)
            if found is None:
                self.restore_markup()
                continue
            self.begin_call(found[1])
            yield from self._arguments(self._tools.get(found[1]))
            self.end_call()
            if marker == OPEN:
                yield from self.skip_markup(CLOSE)

    def _arguments(self, tool: Tool | None) -> Script[None]:
        self.give_arguments("{")
        before = ""
        while True:
            if (yield from self.match(_END, MOST_HEAD)) is not None:
                self.give_arguments("}")
                return
            parameter = yield from self.match(_PARAMETER, MOST_HEAD)
            if parameter is None:
                if self.broken_off(_END) or self.broken_off(_PARAMETER):
                    self._text = ""
                return
            self.give_arguments(f"{before}{json.dumps(parameter[1], ensure_ascii=False)}: ")
            before = ", "
            types = None if tool is None else self._types_of(tool, parameter[1])
            if types == TEXT_ONLY:
                yield from self._text_value()
            else:
                yield from self._other_value(types)
            yield from self.skip_markup("</parameter>")

    def _types_of(self, tool: Tool, name: str) -> frozenset[str] | None:
        """Looked up once: a model may give an argument again and again."""
        if name not in tool.properties:
            return None
        key = tool.name, name
        if key not in self._types:
            self._types[key] = types_of(tool.properties[name], tool.schema)
        return self._types[key]

    def _text_value(self) -> Script[None]:
        """Pass a string on as it comes. The line breaks next to its tags belong to them."""
        self.give_arguments('"')
        is_first = True
        while True:
            at, found = first_of(self._text, ENDS)
            sure = at if found else self._sure()
            value, self._text = self._text[:sure], self._text[sure:]
            if is_first and value:
                value, is_first = value.removeprefix("\n"), False
            self.give_arguments(json.dumps(value.removesuffix("\n") if found else value, ensure_ascii=False)[1:-1])
            if found:
                self.give_arguments('"')
                return
            if self._is_over:
                self._text = ""  # the beginning of a tag
                return
            yield

    def _sure(self) -> int:
        """How much is sure to be the value: no tag begins in it, nor the line break before one."""
        sure = len(self._text) - held_behind(self._text, ENDS)
        return sure - (self._text[:sure].endswith("\n"))

    def _other_value(self, types: frozenset[str] | None) -> Script[None]:
        """Give a value that may be no string once it is whole. One too long to wait for is passed on as a string."""
        at = 0
        while True:
            end, found = first_of(self._text[at:], ENDS)
            if (at + end if found else len(self._text) - _LONGEST_END) > MOST_HELD:
                yield from self._text_value()
                return
            if found or self._is_over:
                break
            at = max(0, len(self._text) - _LONGEST_END)
            yield
        size = at + end if found else len(self._text)
        value, self._text = self._text[:size], self._text[size:]
        if found:
            self.give_arguments(json_value(value.removeprefix("\n").removesuffix("\n"), types))


def _call(tool: Tool, rule: CallRule) -> Part:
    parts = [literal(f"{OPEN}\n{FUNCTION}{tool.name}>\n")]
    is_held = rule.is_held(tool)
    for parameter in held_parameters(tool, is_held=is_held):
        value = value_part(parameter.schema, tool.schema) if is_held else free_value()
        part = sequence(literal(f"<parameter={parameter.name}>\n"), value, literal("\n</parameter>\n"))
        parts.append(part if parameter.is_required else optional(part))
    return sequence(*parts, literal(f"</function>\n{CLOSE}"))


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
