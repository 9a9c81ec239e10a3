"""Literals of Python, as models write them in calls: where one ends, and what it is as JSON.

The reader of pythonic calls converts arguments with it.

INVARIANT: nothing is evaluated; what comes out is one JSON text.
"""

from __future__ import annotations

import json
import re
from typing import Any

_OUTSIDE = re.compile(r"""["'()\[\]{},]""")
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<string>[rR]?(?:'''(?:[^\\]|\\.)*?'''|\"""(?:[^\\]|\\.)*?\"""|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))
    |(?P<number>[-+]?(?:0[xXoObB][0-9a-fA-F_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?))
    |(?P<name>[A-Za-z_]+)
    |(?P<mark>[\[\](){},:])""",
    re.VERBOSE | re.DOTALL,
)
# What may go on as an escape where a text breaks off, behind its backslash: also half of a character without the other.
_BEGUN_ESCAPE = (
    r"x[0-9a-fA-F]?|u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7}|[0-7]{1,2}|\r"
    r"|u[dD][89abAB]..(?:\\(?:u[0-9a-fA-F]{0,3})?)?"
)
_OPENED = re.compile(rf"""([rR]?)('{{3}}|\"{{3}}|['"])((?:[^\\]|\\(?!(?:{_BEGUN_ESCAPE})\Z).)*)""", re.DOTALL)
_BEGUN_NUMBER = re.compile(r"[-+.]?(?:[0-9][\w.+-]*)?")
_NAMES = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_MARKS = {"(": "[", ")": "]"}
_ESCAPE = re.compile(
    r"\\(?:\r?\n|[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[\\'\"abfnrtv])", re.DOTALL
)
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class LiteralSpan:
    """One value of an argument list. It ends at a comma or closing bracket that is not its own."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""

    def scan(self, text: str, at: int, *, is_over: bool) -> tuple[int, bool]:
        """Read `text` from `at`: how far it belongs to the value, and whether the value ends there.

        The next scan goes on from there. `is_over`: nothing comes behind `text`.
        """
        while True:
            if self._quote:
                at, is_closed = self._string(text, at)
                if not is_closed:
                    return at, False
                continue
            found = _OUTSIDE.search(text, at)
            if found is None:
                return len(text), False
            here, character = found.start(), found[0]
            if character in "\"'":
                run = text[here : here + 3]
                if len(run) < 3 and run == character * len(run) and not is_over:
                    return here, False
                self._quote = run if run == character * 3 else character
                at = here + len(self._quote)
                continue
            if self._depth == 0 and character in ",)]}":
                return here, True
            self._depth += (character in "([{") - (character in ")]}")
            at = here + 1

    def _string(self, text: str, at: int) -> tuple[int, bool]:
        while True:
            end, escape = text.find(self._quote, at), text.find("\\", at)
            if end >= 0 and (escape < 0 or end < escape):
                at, self._quote = end + len(self._quote), ""
                return at, True
            if escape < 0:
                # The beginning of a longer quote may be at the end.
                return max(at, len(text) - len(self._quote) + 1), False
            if escape + 2 > len(text):
                return escape, False
            at = escape + 2


def to_json(text: str) -> str | None:
    """The value as JSON, None where it is no literal that JSON can hold. What is JSON already stays as it is."""
    text = text.strip()
    if _is_json(text):
        return text
    pieces: list[str] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            return None
        at = token.end()
        piece = _piece(token)
        if piece is None:
            return None
        if piece in ("]", "}") and pieces and pieces[-1] == ",":
            pieces.pop()
        if piece:
            pieces.append(piece)
    converted = "".join(pieces)
    return converted if _is_json(converted) else None


def begun_json(text: str) -> str | None:
    """The beginning of a value, as JSON as far as it is sure; None where no literal begins so."""
    text = text.lstrip()
    pieces: list[str] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        piece = None if token is None else _piece(token)
        if token is None or piece is None:
            break
        if token[0] in ("''", '""') and text.startswith(token[0][0], token.end()):
            break  # two quotes are an empty string, but for a third behind them
        if _BEGUN_NUMBER.fullmatch(text, at):
            break
        if piece in ("]", "}") and pieces and pieces[-1] == ",":
            pieces.pop()
        pieces.append(piece)
        at = token.end()
    rest = text[at:]
    opened = _OPENED.match(rest)
    if opened is not None:
        whole = f"{opened[1]}{opened[2]}{opened[3]}{opened[2]}"
        return "".join(pieces) + _string(whole)[:-1]
    is_begun = _BEGUN_NUMBER.fullmatch(rest) is not None or any(name.startswith(rest) for name in _NAMES)
    return "".join(pieces) if is_begun else None


def _piece(token: re.Match[str]) -> str | None:
    match token.lastgroup:
        case "space":
            return ""
        case "string":
            return _string(token[0])
        case "number":
            return _number(token[0])
        case "name":
            return _NAMES.get(token[0])
        case _:
            return _MARKS.get(token[0], token[0])


def _string(text: str) -> str:
    is_raw = text[0] in "rR"
    text = text[1:] if is_raw else text
    size = 3 if text[:3] in ('"""', "'''") and len(text) >= 6 else 1
    inner = text[size:-size]
    return json.dumps(inner if is_raw else _ESCAPE.sub(_unescaped, inner), ensure_ascii=False)


def _unescaped(escape: re.Match[str]) -> str:
    body = escape[0][1:]
    if body[0] in _SIMPLE:
        return _SIMPLE[body[0]]
    if body[0] in "xuU":
        code = int(body[1:], 16)
        return chr(code) if code < 0x110000 else escape[0]
    if body[0] in "01234567":
        return chr(int(body, 8))
    return "" if body[0] in "\r\n" else body


def _number(text: str) -> str | None:
    try:
        return json.dumps(int(text, 0))
    except ValueError:
        pass
    try:
        return json.dumps(float(text), allow_nan=False)
    except ValueError:
        return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
