"""Calls as a list of Python calls, `[f(a=1), g(b="x")]`: Llama 3.2 and 4, OLMo 3 and others.

Found by the entry point `pythonic`.

INVARIANT: arguments go out as JSON, each when it is whole, and one that the text breaks off in as far as it came; a
list in which no tool is called is content.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import regex

from asyncpage.text.reply import ReplyReader
from asyncpage.text.scripted_reader import Script, ScriptedReader
from asyncpage.text.tools.json_call import MOST_HEAD, MOST_HELD
from asyncpage.text.tools.parameters import held_parameters
from asyncpage.text.tools.parser import API, CallRule
from asyncpage.text.tools.part import Part, any_of, beginning_without, literal, optional, schema, separated, sequence
from asyncpage.text.tools.python_literal import LiteralSpan, begun_json, to_json
from asyncpage.text.tools.tool import Tool

# What some models put around the list.
MARKERS = {"<|python_start|>": "<|python_end|>", "<|tool_call_start|>": "<|tool_call_end|>"}

_ARGUMENT = r"[A-Za-z_][\w-]*\s*="
_CALL = rf"([\w.-]+)\s*\(\s*(?=\)|{_ARGUMENT})"
_LIST = regex.compile(rf"\s*\[\s*{_CALL}")
_NEXT_CALL = regex.compile(rf"\s*,\s*{_CALL}")
_CLOSE = regex.compile(r"\s*+,?+\s*+\]")
_PARAMETER = regex.compile(r"\s*(?:,\s*)?([A-Za-z_][\w-]*)\s*=\s*")
_END_OF_CALL = regex.compile(r"\s*(?:,\s*)?\)")


class Pythonic:
    """The format, whatever the template."""

    api = API
    name = "pythonic"
    shows_control = False

    def __init__(self, template: str) -> None:
        pass

    @staticmethod
    def fits(template: str) -> bool:
        return "[func_name1(" in template or any(marker in template for marker in MARKERS)

    def new_reader(self, tools: Sequence[Tool]) -> ReplyReader:
        return PythonicReader(frozenset(tool.name for tool in tools))

    def structure(self, rule: CallRule) -> Part:
        call = any_of(*(_call(tool, rule) for tool in rule.tools))
        calls = sequence(literal("["), separated(call, ", ", rule.most), literal("]"))
        return calls if rule.must_call else any_of(calls, beginning_without("[", *MARKERS))

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        given = ", ".join(f"{key}={_python(value)}" for key, value in arguments.items())
        return f"[{name}({given})]"


class PythonicReader(ScriptedReader):
    """`known`: the names that make a list one of calls."""

    def __init__(self, known: Collection[str]) -> None:
        self._known = known
        super().__init__()

    def script(self) -> Script[None]:
        marker = ""
        while True:
            found = yield from self.match(_LIST, MOST_HEAD)
            name = self._broken_name(_LIST) if found is None else found[1]
            if name in self._known:
                yield from self._list(name)
                if marker:
                    yield from self.skip_markup(MARKERS[marker])
            else:
                self.restore_markup()
            marker = yield from self.content(*MARKERS)
            if not marker:
                return

    def _list(self, name: str) -> Script[None]:
        while True:
            self.begin_call(name)
            left = yield from self._arguments()
            self.end_call()
            if left is not None:
                self.reject(left)
                self.restore_markup()
                return
            found = yield from self.match(_NEXT_CALL, MOST_HEAD)
            if found is None and (yield from self.match(_CLOSE, MOST_HEAD)) is not None:
                return
            name = self._broken_name(_NEXT_CALL) if found is None else found[1]
            if name not in self._known:
                self.restore_markup()
                return

    def _broken_name(self, pattern: regex.Pattern[str]) -> str:
        """The name of the call that begins here, where the text breaks off behind it; "" where that is not so."""
        found = self.broken_off(pattern)
        name: str | None = None if found is None or "(" not in found[0] else found[1]
        if name is None or name not in self._known:
            return ""
        self._text = ""
        return name

    def _arguments(self) -> Script[str | None]:
        """The arguments up to the closing bracket: None. When they break off, what of them was gone over in vain."""
        self.give_arguments("{")
        before = ""
        while True:
            self._markup = ""
            if (yield from self.match(_END_OF_CALL, MOST_HEAD)) is not None:
                self.give_arguments("}")
                return None
            parameter = yield from self.match(_PARAMETER, MOST_HEAD)
            if parameter is None:
                if self.broken_off(_PARAMETER) is not None:
                    self._text = ""
                return ""
            text, value = yield from self._value()
            if value is None:
                value = begun_json(text) if self._is_over and not self._text else None
                if value is None:
                    return self._markup + text
            self.give_arguments(f"{before}{json.dumps(parameter[1])}: {value}")
            before = ", "

    def _value(self) -> Script[tuple[str, str | None]]:
        """The value that begins here, as it is written and as JSON; None for the latter when it is none."""
        span, end = LiteralSpan(), 0
        while True:
            end, is_whole = span.scan(self._text, end, is_over=self._is_over)
            if is_whole or self._is_over or end > MOST_HELD:
                break
            yield
        if not is_whole and self._is_over:
            end = len(self._text)  # what was held back of it, too
        is_whole = is_whole and end <= MOST_HELD
        end = min(end, MOST_HELD)
        text, self._text = self._text[:end], self._text[end:]
        return text, to_json(text) if is_whole else None


def _call(tool: Tool, rule: CallRule) -> Part:
    """JSON values are read as well as Python's.

    The first required argument is where commas turn from behind to before; without one they stay behind, which Python
    allows too.
    """
    parts = [literal(f"{tool.name}(")]
    before = False
    for parameter in held_parameters(tool, is_held=rule.is_held(tool)):
        given = sequence(literal(f"{parameter.name}="), schema(parameter.schema))
        if before:
            given = sequence(literal(", "), given)
        elif not parameter.is_required:
            given = sequence(given, literal(", "))
        parts.append(given if parameter.is_required else optional(given))
        before = before or parameter.is_required
    return sequence(*parts, literal(")"))


def _python(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float | bool | None) else json.dumps(value, ensure_ascii=False)
