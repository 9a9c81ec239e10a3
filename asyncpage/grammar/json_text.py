"""The words of JSON in a network: layout, strings, numbers, constants, and any value at all.

The compilers of schemas and of `json_object` write with it.

Between words there is room for one space, or a line end and up to `MAX_INDENT` spaces: enough for every layout that
people write, and a run of blanks comes to an end. After a colon there is room for one space.

INVARIANT: everything that it writes is JSON (RFC 8259), and parses to the value that was meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Any

from asyncpage.grammar.builder import NetworkBuilder
from asyncpage.grammar.counting import repeat
from asyncpage.grammar.nfa import Nfa
from asyncpage.grammar.regex import full_match
from asyncpage.grammar.spelling import json_string, json_string_freely, utf8
from asyncpage.grammar.writing import Writer, write_words

MAX_INDENT = 32
MAX_INT_DIGITS = 18  # of an integer without bounds: it fits into 64 bits
MAX_DECIMALS = 20  # of a number without bounds: doubles print with at most as many before an exponent appears

_INTEGER = rf"0|-?[1-9][0-9]{{0,{MAX_INT_DIGITS - 1}}}"
_NUMBER = rf"-?(0|[1-9][0-9]{{0,{MAX_INT_DIGITS - 1}}})(\.[0-9]{{1,{MAX_DECIMALS}}})?([eE][+-]?[0-9]{{1,2}})?"

_FREELY = json_string_freely()
_QUOTE = b'"'
_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|[][{},:]|[^][{},:"]+')


class JsonText:
    """Writes into one builder. Rules that all places share are made when they are first asked for."""

    def __init__(self, builder: NetworkBuilder) -> None:
        self._builder = builder
        self._plain = Writer(builder, utf8)
        self._quoted = Writer(builder, json_string)
        self._rules: dict[Hashable, int] = {}

    # --- layout -------------------------------------------------------------------------------------------------------

    def open(self, source: int, mark: bytes, target: int) -> None:
        """A `{`, `[` or `,` and the room after it."""
        opened = self._builder.state()
        self._builder.literal(source, mark, opened)
        self._room(opened, target)

    def close(self, source: int, mark: bytes, target: int) -> None:
        """The room before a `}` or `]`, and the mark."""
        closing = self._builder.state()
        self._room(source, closing)
        self._builder.literal(closing, mark, target)

    def colon(self, source: int, target: int) -> None:
        after = self._builder.state()
        self._builder.literal(source, b":", after)
        self._builder.literal(after, b" ", target)
        self._builder.jump(after, target)

    def _room(self, source: int, target: int) -> None:
        line = self._builder.state()
        self._builder.jump(source, target)
        self._builder.literal(source, b" ", target)
        self._builder.literal(source, b"\n", line)
        self.shared("indent", self._indent, line, target)

    def _indent(self, start: int, final: int) -> None:
        for _ in range(MAX_INDENT):
            after = self._builder.state()
            self._builder.jump(start, final)
            self._builder.literal(start, b" ", after)
            start = after
        self._builder.jump(start, final)

    # --- any value ----------------------------------------------------------------------------------------------------

    def any_value(self, source: int, target: int) -> None:
        self.shared("value", self._value, source, target)

    def any_object(self, source: int, target: int) -> None:
        self.shared("object", self._object, source, target)

    def any_array(self, source: int, target: int) -> None:
        self.shared("array", self._array, source, target)

    def any_string(self, source: int, target: int) -> None:
        self.shared("string", self._string, source, target)

    def any_number(self, source: int, target: int) -> None:
        self.shared("number", lambda start, final: self.number(_any(_NUMBER), start, final), source, target)

    def any_integer(self, source: int, target: int) -> None:
        self.shared("integer", lambda start, final: self.number(_any(_INTEGER), start, final), source, target)

    def _value(self, start: int, final: int) -> None:
        for kind in (self.any_object, self.any_array, self.any_string, self.any_number):
            kind(start, final)
        self.constants((True, False, None), start, final)

    def _object(self, start: int, final: int) -> None:
        builder = self._builder
        key, named, entry, ended = (builder.state() for _ in range(4))
        self.open(start, b"{", key)
        builder.literal(key, b"}", final)
        self.any_string(key, named)
        self.colon(named, entry)
        self.any_value(entry, ended)
        after_comma = builder.state()
        self.open(ended, b",", after_comma)
        self.any_string(after_comma, named)
        self.close(ended, b"}", final)

    def _array(self, start: int, final: int) -> None:
        builder = self._builder
        first, ended, after_comma = (builder.state() for _ in range(3))
        self.open(start, b"[", first)
        builder.literal(first, b"]", final)
        self.any_value(first, ended)
        self.open(ended, b",", after_comma)
        self.any_value(after_comma, ended)
        self.close(ended, b"]", final)

    def _string(self, start: int, final: int) -> None:
        self.string_of_length(0, None, start, final)

    def shared(self, key: Hashable, write: Callable[[int, int], None], source: int, target: int) -> None:
        """What `write` writes between two states, as a rule that is written once for its key."""
        rule = self._rules.get(key)
        if rule is None:
            rule = self._rules[key] = self._builder.rule()  # known before it is written: values hold values
            write(self._builder.start(rule), self._builder.final(rule))
        self._builder.call(source, rule, target)

    # --- certain values -----------------------------------------------------------------------------------------------

    def number(self, numbers: Nfa, source: int, target: int) -> None:
        """The numbers that an automaton spells."""
        self._plain.write(numbers, source, target)

    def string(self, texts: Nfa, source: int, target: int) -> None:
        """The strings whose text an automaton matches, each character in its shortest spelling."""
        opened = self._builder.state()
        self._builder.literal(source, _QUOTE, opened)
        self._quoted.write(texts, opened, target, close=_QUOTE)

    def string_of_length(self, low: int, high: int | None, source: int, target: int) -> None:
        """Strings of `low` to `high` characters, with every escape that JSON has."""
        opened, ended = self._builder.state(), self._builder.state()
        self._builder.literal(source, _QUOTE, opened)
        repeat(self._builder, self._character, low, high, opened, ended)
        self._builder.literal(ended, _QUOTE, target)

    def _character(self, source: int, target: int) -> None:
        self._quoted.character(_FREELY, source, target, is_ruled=source != target)

    def constants(self, values: Iterable[Any], source: int, target: int) -> None:
        """One of these values. Lists and objects may be laid out as others are."""
        words = []
        for value in values:
            text = constant_text(value)
            if isinstance(value, (list, dict)):
                self._laid_out(_MARKS.findall(text), source, target)
            else:
                words.append(text.encode())
        if words:
            write_words(self._builder, words, source, target)

    def _laid_out(self, marks: list[str], source: int, target: int) -> None:
        """The words and marks of one value. What is empty has its room behind the opening mark."""
        before = ""
        for index, mark in enumerate(marks):
            after = target if index == len(marks) - 1 else self._builder.state()
            if mark in ("[", "{", ","):
                self.open(source, mark.encode(), after)
            elif mark == ":":
                self.colon(source, after)
            elif mark in ("]", "}") and before not in ("[", "{"):
                self.close(source, mark.encode(), after)
            else:
                self._builder.literal(source, mark.encode(), after)
            source, before = after, mark


def constant_text(value: Any) -> str:
    """A value as JSON, without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _plain(value: Decimal) -> int | float:
    """Equal numbers are spelled alike: 1.0 is 1."""
    return int(value) if value == value.to_integral_value() and value.adjusted() < MAX_INT_DIGITS else float(value)


@lru_cache(maxsize=2)
def _any(pattern: str) -> Nfa:
    return full_match(pattern)
