"""Compiles GBNF, the grammar notation of llama.cpp: context-free rules over characters.

`compile` calls it.

INVARIANT: exactly the texts match that the rule `root` derives, and no rule can call itself before a byte was read,
which a walk could never get out of.
"""

from __future__ import annotations

from asyncpage.grammar.builder import NetworkBuilder
from asyncpage.grammar.counting import repeat
from asyncpage.grammar.gbnf_syntax import (
    Class,
    Expression,
    Group,
    Literal,
    Reference,
    Repetition,
    parse_gbnf,
    references,
)
from asyncpage.grammar.network import Network
from asyncpage.grammar.refusal import too_large, unsupported
from asyncpage.grammar.spelling import utf8
from asyncpage.grammar.writing import Writer

MAX_EMPTY = 100  # times; every one of them is a way that is open at once


def compile_gbnf(text: str) -> Network:
    """Errors: 400."""
    rules = parse_gbnf(text)
    nullable = _nullable(rules)
    _refuse_left_recursion(rules, nullable)
    builder = NetworkBuilder()
    numbers = {"root": 0} | {name: builder.rule() for name in rules if name != "root"}
    writer = _Writer(builder, numbers, nullable)
    for name, rule in rules.items():
        writer.write(rule, builder.start(numbers[name]), builder.final(numbers[name]))
    return builder.finish()


class _Writer:
    def __init__(self, builder: NetworkBuilder, numbers: dict[str, int], nullable: set[str]) -> None:
        self._builder = builder
        self._numbers = numbers
        self._nullable = nullable
        self._characters = Writer(builder, utf8)

    def write(self, expression: Expression, source: int, target: int) -> None:
        match expression:
            case Literal(text):
                self._builder.literal(source, text.encode(), target)
            case Class(chars):
                self._characters.character(utf8(chars), source, target, is_ruled=False)
            case Reference(name):
                self._builder.call(source, self._numbers[name], target)
            case Group(options):
                for option in options:
                    self._sequence(option, source, target)
            case Repetition(part, low, high):
                self._repeat(part, low, high, source, target)

    def _repeat(self, part: Expression, low: int, high: int | None, source: int, target: int) -> None:
        """A part that is a rule by itself is called, so that counts within counts do not multiply."""
        if _can_be_empty(part, self._nullable):
            if max(low, high or 0) > MAX_EMPTY:
                raise too_large(f"a part that may be empty is repeated more than {MAX_EMPTY} times")
            low = 0
        if isinstance(part, Class):
            characters = utf8(part.chars)
            is_counted = (low if high is None else high) > 1

            def write(start: int, end: int) -> None:
                self._characters.character(characters, start, end, is_ruled=is_counted and start != end)
        else:
            rule = self._builder.rule()
            self.write(part, self._builder.start(rule), self._builder.final(rule))

            def write(start: int, end: int) -> None:
                self._builder.call(start, rule, end)

        repeat(self._builder, write, low, high, source, target)

    def _sequence(self, parts: tuple[Expression, ...], source: int, target: int) -> None:
        for part in parts:
            after = self._builder.state()
            self.write(part, source, after)
            source = after
        self._builder.jump(source, target)


def _refuse_left_recursion(rules: dict[str, Group], nullable: set[str]) -> None:
    """Errors: 400 that names a rule which may begin with itself."""
    begins_with = {name: list(dict.fromkeys(_beginnings(rule, nullable))) for name, rule in rules.items()}
    done: set[str] = set()
    for first in rules:
        path: dict[str, int] = {first: 0}  # how many of each rule's beginnings were followed
        stack = [first]
        while stack:
            name = stack[-1]
            followed = path[name]
            if name in done or followed == len(begins_with[name]):
                done.add(name)
                stack.pop()
                del path[name]
                continue
            path[name] = followed + 1
            after = begins_with[name][followed]
            if after in path:
                raise unsupported(
                    f"the rule {after!r} may begin with itself: left recursion is not supported, write a repetition"
                )
            if after not in done:
                path[after] = 0
                stack.append(after)


def _nullable(rules: dict[str, Group]) -> set[str]:
    """Rules that match the empty text."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, rule in rules.items():
        for other in dict.fromkeys(references(rule)):
            users[other].append(name)
    found: set[str] = set()
    waiting = list(rules)
    while waiting:
        name = waiting.pop()
        if name not in found and _can_be_empty(rules[name], found):
            found.add(name)
            waiting += users[name]
    return found


def _can_be_empty(expression: Expression, nullable: set[str]) -> bool:
    match expression:
        case Literal(text):
            return not text
        case Class():
            return False
        case Reference(name):
            return name in nullable
        case Group(options):
            return any(all(_can_be_empty(part, nullable) for part in option) for option in options)
        case Repetition(part, low, _):
            return low == 0 or _can_be_empty(part, nullable)


def _beginnings(expression: Expression, nullable: set[str]) -> list[str]:
    """Rules that an expression may call before it reads a character."""
    match expression:
        case Reference(name):
            return [name]
        case Group(options):
            found = []
            for option in options:
                for part in option:
                    found += _beginnings(part, nullable)
                    if not _can_be_empty(part, nullable):
                        break
            return found
        case Repetition(part, _, _):
            return _beginnings(part, nullable)
    return []
