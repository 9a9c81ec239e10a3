"""Regular expressions to automata: a pattern's whole text, or a place in a text where it matches.

`compile` asks for the first, schemas' `pattern` for the second. Thompson's construction with two kinds of anchors:
moves that are allowed only before the first character, and only after the last.

INVARIANT: the automaton matches exactly the texts that the pattern does.
"""

from __future__ import annotations

from functools import lru_cache

from asyncpage.grammar.charset import ANY, CharSet
from asyncpage.grammar.dfa import both, determined, none_of
from asyncpage.grammar.nfa import Nfa, nfa
from asyncpage.grammar.refusal import too_large, unsupported
from asyncpage.grammar.regex_syntax import parse_regex
from asyncpage.grammar.regex_tree import Alternatives, Anchor, Chars, Pattern, Repeat, Sequence, Tree, can_be_empty

MAX_CLOSURES = (
    500_000  # steps along empty moves, some tenths of a second: only repetitions of what may be empty need many
)


@lru_cache(maxsize=16)
def full_match(pattern: str, path: tuple[str, ...] = ()) -> Nfa:
    """What the pattern matches from the first to the last character. Errors: 400."""
    parsed = parse_regex(pattern, path)
    return _with_ahead(_automaton(parsed.tree, path), parsed, path)


@lru_cache(maxsize=16)
def search(pattern: str, path: tuple[str, ...] = ()) -> Nfa:
    """Texts in which the pattern matches somewhere, as a schema's `pattern` means it. Errors: 400."""
    parsed = parse_regex(pattern, path)
    if parsed.ahead and not _begins_at_start(parsed.tree):
        raise unsupported("the pattern has a lookahead, which is supported only after ^", path)
    return _with_ahead(_automaton(parsed.tree, path, may_begin_late=True, may_end_early=True), parsed, path)


def _with_ahead(made: Nfa, parsed: Pattern, path: tuple[str, ...]) -> Nfa:
    """A lookahead at the beginning is a condition on the whole text."""
    for is_negative, tree in parsed.ahead:
        begun = _automaton(tree, path, may_end_early=True)
        made = both(made, none_of(begun) if is_negative else begun)
    return made if not parsed.ahead else determined(made) or made


def _begins_at_start(tree: Tree) -> bool:
    first = tree.parts[0] if isinstance(tree, Sequence) and tree.parts else tree
    return isinstance(first, Anchor) and not first.is_end


def _automaton(tree: Tree, path: tuple[str, ...], *, may_begin_late: bool = False, may_end_early: bool = False) -> Nfa:
    thompson = _Thompson()
    start, after = thompson.state(), thompson.state()
    thompson.add(tree, start, after)
    if may_begin_late:
        before, start = start, thompson.state()
        loop = thompson.state()
        thompson.empty[start].append(before)
        thompson.moves[start].append((ANY, loop))
        thompson.moves[loop].append((ANY, loop))
        thompson.empty[loop].append(before)
    if may_end_early:
        thompson.moves[after].append((ANY, after))
    made = thompson.without_empty_moves(start, after, path)
    return determined(made) or made


class _Thompson:
    """By state: `moves`, `empty` moves, and those that are allowed only `at_start` or `at_end` of the text."""

    def __init__(self) -> None:
        self.moves: list[list[tuple[CharSet, int]]] = []
        self.empty: list[list[int]] = []
        self.at_start: dict[int, list[int]] = {}
        self.at_end: dict[int, list[int]] = {}

    def state(self) -> int:
        self.moves.append([])
        self.empty.append([])
        return len(self.moves) - 1

    def add(self, tree: Tree, source: int, target: int) -> None:
        """Ways from `source` to `target` that match the tree; nothing comes into `source` or goes out of `target`."""
        match tree:
            case Chars(chars):
                self.moves[source].append((chars, target))
            case Anchor(is_end):
                (self.at_end if is_end else self.at_start).setdefault(source, []).append(target)
            case Sequence(parts):
                for part in parts[:-1]:
                    after = self.state()
                    self.add(part, source, after)
                    source = after
                if parts:
                    self.add(parts[-1], source, target)
                else:
                    self.empty[source].append(target)
            case Alternatives(options):
                for option in options:
                    self.add(option, source, target)
            case Repeat(part, low, high):
                self._repeat(part, 0 if can_be_empty(part) else low, high, source, target)

    def _repeat(self, part: Tree, low: int, high: int | None, source: int, target: int) -> None:
        for _ in range(low):
            after = self.state()
            self.add(part, source, after)
            source = after
        if high is None:
            loop = self.state()
            self.empty[source].append(loop)
            self.empty[loop].append(target)
            after = self.state()
            self.add(part, loop, after)
            self.empty[after].append(loop)
            return
        for _ in range(high - low):
            self.empty[source].append(target)  # straight to the end, so that closures stay small
            after = self.state()
            self.add(part, source, after)
            source = after
        self.empty[source].append(target)

    def without_empty_moves(self, start: int, final: int, path: tuple[str, ...]) -> Nfa:
        """State 0 is the start before the first character; the others are Thompson's, after one."""
        steps = 0

        def closure(state: int, *anchors: dict[int, list[int]]) -> list[int]:
            nonlocal steps
            known = {state}
            order = [state]
            for one in order:
                targets = [*self.empty[one], *(target for anchor in anchors for target in anchor.get(one, ()))]
                steps += 1 + len(targets)
                for target in targets:
                    if target not in known:
                        known.add(target)
                        order.append(target)
            if steps > MAX_CLOSURES:
                raise too_large("the pattern repeats what may be empty too often", path)
            return order

        number: dict[int, int] = {}
        order: list[int] = []

        def row(members: list[int]) -> list[tuple[CharSet, int]]:
            found = []
            for member in members:
                for chars, target in self.moves[member]:
                    if target not in number:
                        order.append(target)
                        number[target] = len(order)
                    found.append((chars, number[target]))
            return found

        rows = [row(closure(start, self.at_start))]
        accepting = [final in closure(start, self.at_start, self.at_end)]
        for state in order:
            rows.append(row(closure(state)))
            accepting.append(final in (closure(state, self.at_end) if self.at_end else closure(state)))
        return nfa(rows, accepting)
