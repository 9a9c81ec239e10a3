r"""Reads GBNF, the grammar notation of llama.cpp, into expressions by rule name.

`gbnf` compiles what it gives. Known: rules `name ::= ...`, "literals" and [classes] with escapes (\n \t \r \\ \" \[ \]
\xHH \uHHHH \UHHHHHHHH), the dot, groups, `|`, the suffixes * + ? {m} {m,} {m,n}, and comments with #. A rule ends with
its line, unless a group is open, or the line ends with, or the next begins with, a bar.

INVARIANT: every name that an expression refers to is a rule's, nesting is bounded, and a grammar's own text but for
its rule names is in no error.
"""

from __future__ import annotations

import re

from asyncpage.grammar.charset import ANY, CharSet, charset
from asyncpage.grammar.refusal import invalid, too_large, unsupported
from asyncpage.records import record

MAX_TEXT = 262_144  # characters
MAX_RULES = 5_000
MAX_DEEP = 100  # groups within groups; the compiler recurses this deep
MAX_COUNT = 100_000

_SPACE = re.compile(r"(?:[ \t]|#[^\n]*)*")
_LINES = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_COUNTS = re.compile(r"\{[ \t]*([0-9]*)[ \t]*(,?)[ \t]*([0-9]*)[ \t]*\}")
_ESCAPES = {"n": 10, "r": 13, "t": 9, "\\": 92, '"': 34, "[": 91, "]": 93, "-": 45, "^": 94, "'": 39, "/": 47}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_SUFFIXES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@record(frozen=True, slots=True)
class Literal:
    """Exactly this text."""

    text: str


@record(frozen=True, slots=True)
class Class:
    """One character of a set."""

    chars: CharSet


@record(frozen=True, slots=True)
class Reference:
    """What another rule matches."""

    name: str


@record(frozen=True, slots=True)
class Group:
    """One of the options, each its parts in order."""

    options: tuple[tuple[Expression, ...], ...]


@record(frozen=True, slots=True)
class Repetition:
    """A part `low` to `high` times, without an upper bound when `high` is None."""

    part: Expression
    low: int
    high: int | None


Expression = Literal | Class | Reference | Group | Repetition


def parse_gbnf(text: str) -> dict[str, Group]:
    """The rules by name. Errors: 400."""
    if len(text) > MAX_TEXT:
        raise too_large(f"a grammar may have at most {MAX_TEXT} characters, got {len(text)}")
    rules = _Parser(text.replace("\r\n", "\n")).parse()
    if "root" not in rules:
        raise invalid("the grammar has no rule named root, which is where an answer begins")
    for name, rule in rules.items():
        for other in references(rule):
            if other not in rules:
                raise invalid(f"the rule {name!r} refers to {other!r}, which is not defined")
    return rules


def references(expression: Expression) -> list[str]:
    """Names that an expression refers to, in their order."""
    match expression:
        case Reference(name):
            return [name]
        case Group(options):
            return [name for option in options for part in option for name in references(part)]
        case Repetition(part, _, _):
            return references(part)
    return []


class _Open:
    """A group that is open: options that are complete, and the parts of the one that is being read."""

    def __init__(self) -> None:
        self.options: list[tuple[Expression, ...]] = []
        self.parts: list[Expression] = []

    def close(self) -> Group:
        return Group((*self.options, tuple(self.parts)))


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parse(self) -> dict[str, Group]:
        rules: dict[str, Group] = {}
        self._skip(_LINES)
        while self._at < len(self._text):
            name = self._name()
            if name is None:
                raise self._invalid("a rule must begin with its name")
            self._skip(_SPACE)
            if not self._takes("::="):
                raise self._invalid(f"::= must follow the name of the rule {name!r}")
            self._skip(_LINES)
            if name in rules:
                raise self._invalid(f"the rule {name!r} is defined twice")
            rules[name] = self._rule(name)
            if len(rules) > MAX_RULES:
                raise too_large(f"a grammar may have at most {MAX_RULES} rules")
            self._skip(_LINES)
        return rules

    def _rule(self, name: str) -> Group:
        """Up to the end of the rule: a stack of open groups, not recursion, so that depth is a number to check."""
        stack = [_Open()]
        while True:
            is_inside = len(stack) > 1
            self._skip(_LINES if is_inside else _SPACE)
            char = self._text[self._at : self._at + 1]
            group = stack[-1]
            if char == "|":
                self._at += 1
                self._skip(_LINES)
                group.options.append(tuple(group.parts))
                group.parts = []
            elif char == "(":
                self._at += 1
                stack.append(_Open())
                if len(stack) > MAX_DEEP:
                    raise too_large(f"the rule {name!r} nests more than {MAX_DEEP} groups")
            elif char == ")" and is_inside:
                self._at += 1
                closed = stack.pop().close()
                stack[-1].parts.append(self._repeated(closed))
            elif char in ("", "\n") and not is_inside:
                if not self._bar_follows():
                    return group.close()
            elif char == "":
                raise self._invalid(f"a group of the rule {name!r} is not closed")
            else:
                group.parts.append(self._repeated(self._part(name)))

    def _bar_follows(self) -> bool:
        """Whether the next line goes on with another option; then that is where the reading is."""
        before = self._at
        self._skip(_LINES)
        if self._text.startswith("|", self._at):
            return True
        self._at = before
        return False

    def _part(self, name: str) -> Expression:
        char = self._text[self._at]
        if char == '"':
            self._at += 1
            return Literal(self._literal())
        if char == "[":
            self._at += 1
            return Class(self._class())
        if char == ".":
            self._at += 1
            return Class(ANY)
        if char in "<!":
            raise unsupported(f"the rule {name!r} names a token of the vocabulary, which is not supported")
        reference = self._name()
        if reference is None:
            raise self._invalid(f"the rule {name!r} has a character that begins nothing")
        return Reference(reference)

    def _repeated(self, part: Expression) -> Expression:
        """The part with the suffixes that follow it."""
        for _ in range(MAX_DEEP):
            self._skip(_SPACE)
            char = self._text[self._at : self._at + 1]
            if char in _SUFFIXES:
                self._at += 1
                part = Repetition(part, *_SUFFIXES[char])
            elif char == "{":
                part = Repetition(part, *self._counts())
            else:
                return part
        raise too_large(f"a part of the grammar has more than {MAX_DEEP} suffixes")

    def _counts(self) -> tuple[int, int | None]:
        found = _COUNTS.match(self._text, self._at)
        if found is None or not (found[1] or found[3]):
            raise self._invalid("a count must be {m}, {m,} or {m,n}")
        if max(len(found[1]), len(found[3])) > 9 or max(int(found[1] or 0), int(found[3] or 0)) > MAX_COUNT:
            raise too_large(f"a count may be at most {MAX_COUNT}")
        low = int(found[1] or 0)
        high = (int(found[3]) if found[3] else None) if found[2] else low
        if high is not None and high < low:
            raise self._invalid(f"a count asks for at least {low} and at most {high}")
        self._at = found.end()
        return low, high

    # --- characters ---------------------------------------------------------------------------------------------------

    def _literal(self) -> str:
        chars = []
        while not self._takes('"'):
            chars.append(chr(self._character("a literal")))
        return "".join(chars)

    def _class(self) -> CharSet:
        is_negated = self._takes("^")
        ranges = []
        while not self._takes("]"):
            first = self._character("a class")
            last = first
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._character("a class")
            if last < first:
                raise self._invalid("a range of a class ends before it begins")
            ranges.append((first, last))
        return ~charset(ranges) if is_negated else charset(ranges)

    def _character(self, where: str) -> int:
        char = self._text[self._at : self._at + 1]
        if char == "":
            raise self._invalid(f"{where} is not closed")
        self._at += 1
        point = self._escape() if char == "\\" else ord(char)
        if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            raise self._invalid(f"{where} has a code point that is no character")
        return point

    def _escape(self) -> int:
        char = self._text[self._at : self._at + 1]
        self._at += 1
        digits = _HEX_DIGITS.get(char)
        if digits is None:
            if char not in _ESCAPES:
                raise self._invalid("an unknown escape")
            return _ESCAPES[char]
        found = self._text[self._at : self._at + digits]
        if not re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", found):
            raise self._invalid(f"an escape that needs {digits} hexadecimal digits")
        self._at += digits
        return int(found, 16)

    # --- the text -----------------------------------------------------------------------------------------------------

    def _name(self) -> str | None:
        found = _NAME.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found[0][:100]

    def _skip(self, what: re.Pattern[str]) -> None:
        found = what.match(self._text, self._at)
        self._at = found.end() if found is not None else self._at

    def _takes(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _invalid(self, what: str) -> Exception:
        line = self._text.count("\n", 0, self._at) + 1
        return invalid(f"the grammar is malformed on line {line}: {what}")
