"""A finite automaton over characters, without empty moves; a deterministic one is one of these too.

Regular expressions, number ranges and string formats become one; `dfa` makes it deterministic and combines it with
others, and `writing` puts it into a network.

INVARIANT: every state can be reached from the start and can reach an accepting state, but for the start itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpage.grammar.charset import ANY, CharSet
from asyncpage.records import record

Moves = tuple[tuple[CharSet, int], ...]


@record(frozen=True, slots=True)
class Nfa:
    """State 0 is the start. `moves`: of each state, by character set, to where. `accepting`: by state."""

    moves: tuple[Moves, ...]
    accepting: tuple[bool, ...]

    @property
    def is_empty(self) -> bool:
        """Whether it matches nothing at all, not even the empty text."""
        return not any(self.accepting)

    def matches(self, text: str) -> bool:
        """Whether the whole text is one of its language."""
        states = {0}
        for char in text:
            point = ord(char)
            states = {target for state in states for chars, target in self.moves[state] if point in chars}
        return any(self.accepting[state] for state in states)

    def shortest(self) -> int:
        """Characters of the shortest text that it matches; it must match one."""
        level, length, known = [0], 0, {0}
        while not any(self.accepting[state] for state in level):
            level = list({target for state in level for _, target in self.moves[state]} - known)
            known.update(level)
            length += 1
        return length

    def longest(self) -> int | None:
        """Characters of the longest text that it matches, None when there is none."""
        depth: list[int | None] = [None] * len(self.moves)
        entered = [False] * len(self.moves)
        waiting = [0]
        while waiting:
            state = waiting[-1]
            if depth[state] is not None:
                waiting.pop()
            elif not entered[state]:
                entered[state] = True
                for _, target in self.moves[state]:
                    if depth[target] is None:
                        if entered[target]:
                            return None  # a ring, and every state of it leads to an end
                        waiting.append(target)
            else:
                depth[state] = max((1 + (depth[target] or 0) for _, target in self.moves[state]), default=0)
                waiting.pop()
        return depth[0]


def nfa(moves: Sequence[Sequence[tuple[CharSet, int]]], accepting: Sequence[bool]) -> Nfa:
    """The automaton of these states, without those that keep the invariant from holding."""
    before: list[list[int]] = [[] for _ in moves]
    for state, row in enumerate(moves):
        for chars, target in row:
            if chars:
                before[target].append(state)
    is_alive = [False] * len(moves)
    waiting = [state for state, accepts in enumerate(accepting) if accepts]
    while waiting:
        state = waiting.pop()
        if not is_alive[state]:
            is_alive[state] = True
            waiting += before[state]
    number = {0: 0}
    order = [0]
    rows: list[Moves] = []
    for state in order:
        row = []
        for chars, target in moves[state]:
            if chars and is_alive[target]:
                if target not in number:
                    number[target] = len(order)
                    order.append(target)
                row.append((chars, number[target]))
        rows.append(tuple(row))
    return Nfa(tuple(rows), tuple(accepting[state] for state in order))


NOTHING = Nfa(((),), (False,))
"""Matches no text."""

ANYTHING = Nfa((((ANY, 0),),), (True,))
"""Matches every text."""
