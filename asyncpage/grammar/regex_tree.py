"""What a regular expression says, as a tree: characters, sequences, alternatives, repetitions and anchors.

The syntax makes it, the compiler turns it into an automaton.

INVARIANT: `positions` of a tree is an upper bound of the states that its automaton takes, so that a bomb is refused
before it is unfolded.
"""

from __future__ import annotations

from asyncpage.grammar.charset import CharSet
from asyncpage.records import record


@record(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    chars: CharSet


@record(frozen=True, slots=True)
class Sequence:
    """One part after another; without parts, the empty text."""

    parts: tuple[Tree, ...]


@record(frozen=True, slots=True)
class Alternatives:
    """One of the options."""

    options: tuple[Tree, ...]


@record(frozen=True, slots=True)
class Repeat:
    """A part `low` to `high` times, without an upper bound when `high` is None."""

    part: Tree
    low: int
    high: int | None


@record(frozen=True, slots=True)
class Anchor:
    """The beginning of the text, or its end."""

    is_end: bool


Tree = Chars | Sequence | Alternatives | Repeat | Anchor


@record(frozen=True, slots=True)
class Pattern:
    """A whole pattern. `ahead`: what the text must begin with as well, or (True) must not begin with."""

    tree: Tree
    ahead: tuple[tuple[bool, Tree], ...] = ()


def positions(tree: Tree) -> int:
    """An upper bound of the states that the tree unfolds to."""
    match tree:
        case Chars() | Anchor():
            return 1
        case Sequence(parts) | Alternatives(parts):
            return 1 + sum(map(positions, parts))
        case Repeat(part, low, high):
            return (1 + positions(part)) * max(low + 1 if high is None else high, 1)


def can_be_empty(tree: Tree) -> bool:
    """Whether the tree matches without a character, at any place of a text."""
    match tree:
        case Chars() | Anchor():
            return False
        case Sequence(parts):
            return all(map(can_be_empty, parts))
        case Alternatives(options):
            return any(map(can_be_empty, options))
        case Repeat(part, low, _):
            return low == 0 or can_be_empty(part)
