"""A call written as a JSON object with a name and arguments: the heart of most formats.

The readers of the formats are built on it.

INVARIANT: arguments in the usual place go out as the model wrote them, piece by piece, as many as came where the text
breaks off; an object in any other order goes out when it is whole, and one that is no call or never whole is content.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import regex

from asyncpage.text.scripted_reader import Script, ScriptedReader
from asyncpage.text.tools.json_span import JsonSpan

MOST_HEAD = 1024
"""Characters before a call's arguments."""

MOST_HELD = 256 * 1024
"""Characters of an object that must be whole before it is known what it says."""

_HEAD = regex.compile(r'\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_CLOSE = regex.compile(r"\s*(?:\}|(,))")
_OPEN = regex.compile(r"\s*(?=[{\[])")


class JsonCallReader(ScriptedReader):
    """Adds the step that reads calls as JSON. `known`: the names that make an object a call, None for any."""

    def __init__(self, known: Collection[str] | None = None) -> None:
        self._known = known
        super().__init__()

    def json_calls(self, *stops: str) -> Script[bool]:
        """Read one object (or a list of them), up to one of the markers `stops` where it is not closed.

        False when it is no call: then the markup before it is still to be restored.
        """
        head = yield from self._head()
        if head is None:
            return (yield from self._whole(stops))
        self.begin_call(head)
        yield from self.json_arguments(stops)
        # An object that is not closed ends with its arguments; what stands behind them in it says nothing to us.
        closing = yield from self.match(_CLOSE, MOST_HEAD)
        if closing is not None and closing[1]:
            yield from self._skip(JsonSpan(stops, depth=1))
        self._markup = ""
        return True

    def json_arguments(self, stops: Sequence[str]) -> Script[None]:
        """Pass the object that begins here on as the arguments of the call begun last, and end the call."""
        span = JsonSpan(stops)
        while True:
            end, is_whole = span.scan(self._text, 0, is_over=self._is_over)
            self.give_arguments(self._text[:end])
            self._text = self._text[end:]
            if is_whole or self._is_over:
                break
            yield
        self.end_call()

    def _head(self) -> Script[str | None]:
        before = self._markup
        found = yield from self.match(_HEAD, MOST_HEAD)
        if found is None:
            found = self.broken_off(_HEAD)
            if found is None or found[1] is None:
                return None
            self._text = ""
        name = _decoded(f'"{found[1]}"')
        if isinstance(name, str) and (self._known is None or name in self._known):
            return name
        self._markup, self._text = before, found[0] + self._text
        return None

    def _whole(self, stops: Sequence[str]) -> Script[bool]:
        before = self._markup
        opening = yield from self.match(_OPEN, MOST_HEAD)
        if opening is None:
            return False
        span, end = JsonSpan(stops), 0
        while True:
            end, is_whole = span.scan(self._text, end, is_over=self._is_over)
            if is_whole or self._is_over or end > MOST_HELD:
                break
            yield
        calls = None if end > MOST_HELD else calls_in(_decoded(self._text[:end]), self._known)
        tried, self._text = self._text[: min(end, MOST_HELD)], self._text[min(end, MOST_HELD) :]
        if calls is None:
            self._markup = before
            self.reject(opening[0] + tried)
            return False
        for name, arguments in calls:
            self.begin_call(name)
            self.give_arguments(arguments)
            self.end_call()
        return True

    def _skip(self, span: JsonSpan) -> Script[None]:
        while True:
            end, is_whole = span.scan(self._text, 0, is_over=self._is_over)
            self._text = self._text[end:]
            if is_whole or self._is_over:
                return
            yield


def calls_in(value: Any, known: Collection[str] | None) -> list[tuple[str, str]] | None:
    """Name and arguments of each call in an object or a list of objects; None when it is anything else."""
    items = value if isinstance(value, list) else [value]
    calls = []
    for item in items:
        if not isinstance(item, dict):
            return None
        inner = item.get("function")
        if isinstance(inner, dict):
            item = inner
        name = item.get("name", inner)
        if not isinstance(name, str) or not name or (known is not None and name not in known):
            return None
        arguments = item.get("arguments", item.get("parameters"))
        if isinstance(arguments, str) and isinstance(_decoded(arguments), dict):
            calls.append((name, arguments))
        elif arguments is None or isinstance(arguments, dict):
            calls.append((name, json.dumps(arguments or {}, ensure_ascii=False)))
        else:
            return None
    return calls or None


def _decoded(text: str) -> Any:
    """The JSON value of `text`, None where it is none."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
