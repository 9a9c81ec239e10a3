"""Deterministic automata: made from any, made small, and combined (both, not, between so and so many characters).

The regular expression compiler and the string and number shapes of schemas call it. The subset construction and the
products are those of Hopcroft, Motwani and Ullman, "Introduction to Automata Theory".

INVARIANT: what it returns matches exactly what it says, and no construction makes more than `MAX_STATES` states.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

from asyncpage.errors import RequestError
from asyncpage.grammar.charset import ANY, CharSet, Range, charset, one_of
from asyncpage.grammar.nfa import Nfa, nfa
from asyncpage.grammar.refusal import too_large

MAX_STATES = 8_000
MAX_WORK = 100_000  # members of all subsets, or moves that a product looks at: some tenths of a second
EXACT_COUNT = 256  # characters up to which a bound on a string's length is exact, however its pattern goes on
MAX_COUNTED = 3_000  # states for the counts of one string

State = TypeVar("State", bound=Hashable)
Row = list[tuple[CharSet, State]]


def determined(automaton: Nfa) -> Nfa | None:
    """The smallest deterministic automaton of the same language; None when that would be far too large."""
    made = _subsets(automaton, most=4 * len(automaton.moves) + 1_000)
    return None if made is None else minimal(made)


def minimal(automaton: Nfa) -> Nfa:
    """The smallest deterministic automaton of a deterministic one's language (Hopcroft's algorithm).

    What leads nowhere is a block of its own that is never split; it is the one that needs not be looked back from.
    """
    moves = automaton.moves
    classes, _ = _classes({chars for row in moves for chars, _ in row})
    before: list[list[tuple[int, int]]] = [[] for _ in moves]  # by target: class, source
    for state, row in enumerate(moves):
        for chars, target in row:
            before[target] += [(index, state) for index in classes[chars]]
    accepting = {state for state, accepts in enumerate(automaton.accepting) if accepts}
    blocks = [block for block in (accepting, set(range(len(moves))) - accepting) if block]
    block_of = [int(len(blocks) > 1 and state not in accepting) for state in range(len(moves))]
    waiting = set(range(len(blocks)))
    while waiting:
        into: dict[int, list[int]] = {}
        for state in blocks[waiting.pop()]:
            for index, source in before[state]:
                into.setdefault(index, []).append(source)
        for sources in into.values():
            parts: dict[int, set[int]] = {}
            for source in sources:
                parts.setdefault(block_of[source], set()).add(source)
            for number, part in parts.items():
                if len(part) == len(blocks[number]):
                    continue
                blocks[number] -= part
                new = len(blocks)
                blocks.append(part)
                for state in part:
                    block_of[state] = new
                waiting.add(new if number in waiting or len(part) <= len(blocks[number]) else number)
    if len(blocks) == len(moves):
        return automaton
    # The start's block comes first, the others by their first state, so that equal automata are made equally.
    firsts = sorted(min(block) for block in blocks)
    number_of = {block_of[first]: number for number, first in enumerate(firsts)}
    rows: list[Row[int]] = []
    for first in firsts:
        by_target: dict[int, list[Range]] = {}
        for chars, target in moves[first]:
            by_target.setdefault(number_of[block_of[target]], []).extend(chars.ranges)
        rows.append([(charset(ranges), target) for target, ranges in by_target.items()])
    return nfa(rows, [automaton.accepting[first] for first in firsts])


def both(left: Nfa, right: Nfa) -> Nfa:
    """What both match. Errors: 400 past `MAX_STATES`."""

    work = 0

    def row(pair: tuple[int, int]) -> Row[tuple[int, int]]:
        nonlocal work
        left_row, right_row = left.moves[pair[0]], right.moves[pair[1]]
        work += len(left_row) * len(right_row)
        if work > MAX_WORK:
            raise _too_many()
        return [
            (common, (to_left, to_right))
            for left_chars, to_left in left_row
            for right_chars, to_right in right_row
            if (common := left_chars & right_chars)
        ]

    return explore((0, 0), row, lambda pair: left.accepting[pair[0]] and right.accepting[pair[1]])


def either(automata: Sequence[Nfa]) -> Nfa:
    """What one of them matches."""
    rows: list[Row[int]] = [[]]
    accepting = [any(automaton.accepting[0] for automaton in automata)]
    for automaton in automata:
        offset = len(rows)
        rows[0] += [(chars, target + offset) for chars, target in automaton.moves[0]]
        rows += [[(chars, target + offset) for chars, target in row] for row in automaton.moves]
        accepting += automaton.accepting
    return nfa(rows, accepting)


def words(texts: Iterable[str]) -> Nfa:
    """These texts, deterministically."""
    rows: list[dict[str, int]] = [{}]
    accepting = [False]
    for text in texts:
        state = 0
        for char in text:
            if char not in rows[state]:
                rows[state][char] = len(rows)
                rows.append({})
                accepting.append(False)
            state = rows[state][char]
        accepting[state] = True
    return nfa([[(one_of(char), target) for char, target in row.items()] for row in rows], accepting)


def containing(texts: Iterable[str]) -> Nfa:
    """Texts that have one of these somewhere."""
    trie = words(texts)
    loop = len(trie.moves)
    rows: list[Row[int]] = [[(ANY, loop + 1), *trie.moves[0]]]
    for row, accepts in zip(trie.moves[1:], trie.accepting[1:], strict=True):
        rows.append([(ANY, loop)] if accepts else list(row))
    rows.append([(ANY, loop)])
    rows.append([(ANY, loop + 1), *trie.moves[0]])
    return nfa(rows, [*trie.accepting, True, False])


def none_of(automaton: Nfa) -> Nfa:
    """What it does not match. Errors: 400 when it cannot be made deterministic within bounds."""
    made = determined(automaton)
    if made is None:
        raise too_large(f"a pattern needs more than {MAX_STATES} states to be told from all other text")
    sink = len(made.moves)
    rows: list[Row[int]] = []
    for row in made.moves:
        rest = ~charset(span for chars, _ in row for span in chars.ranges)
        rows.append([*row, (rest, sink)])
    rows.append([(ANY, sink)])
    return nfa(rows, [*(not accepts for accepts in made.accepting), True])


def between(automaton: Nfa, low: int, high: int | None) -> Nfa:
    """What it matches of `low` to `high` characters. Errors: 400 past `MAX_STATES`.

    Where `high` is past `EXACT_COUNT`, some of the longest texts may be left out.
    """
    if automaton.is_empty:
        return automaton
    longest = automaton.longest()
    if low <= automaton.shortest() and (high is None or (longest is not None and longest <= high)):
        return automaton
    if high is not None and high > EXACT_COUNT:
        return _at_most(between(automaton, low, None), high)
    top = low if high is None else high

    def row(place: tuple[int, int]) -> Row[tuple[int, int]]:
        state, count = place
        if high is not None and count == high:
            return []
        return [(chars, (target, min(count + 1, top))) for chars, target in automaton.moves[state]]

    return explore((0, 0), row, lambda place: place[1] >= low and automaton.accepting[place[0]])


def _at_most(automaton: Nfa, high: int) -> Nfa:
    """At most `high` characters, counted from where the automaton first can run in a ring.

    Before that, a state's count is that of the longest way to it: a single one, where there could be hundreds.
    """
    ahead = [0] * len(automaton.moves)
    for row in automaton.moves:
        for _, target in row:
            ahead[target] += 1
    longest: dict[int, int] = {} if ahead[0] else {0: 0}
    order = list(longest)
    for state in order:
        for _, target in automaton.moves[state]:
            ahead[target] -= 1
            if not ahead[target]:
                # Its last predecessor in this order need not be the one that is farthest.
                order.append(target)
                longest[target] = 0
    for state in order:
        for _, target in automaton.moves[state]:
            if target in longest:
                longest[target] = max(longest[target], longest[state] + 1)
    in_rings = max(len(automaton.moves) - len(order), 1)
    top = max(min(high, MAX_COUNTED // in_rings), EXACT_COUNT)

    def row_of(place: tuple[int, int]) -> Row[tuple[int, int]]:
        state, count = place
        counted = [(chars, (target, longest.get(target, count + 1))) for chars, target in automaton.moves[state]]
        return [move for move in counted if move[1][1] <= top]

    return explore((0, 0), row_of, lambda place: automaton.accepting[place[0]])


def explore(start: State, row_of: Callable[[State], Row[State]], accepts: Callable[[State], bool]) -> Nfa:
    """The automaton of all states that can be reached. Errors: 400 past `MAX_STATES`."""
    number = {start: 0}
    order = [start]
    rows: list[Row[int]] = []
    for state in order:
        row = []
        for chars, target in row_of(state):
            index = number.get(target)
            if index is None:
                index = number[target] = len(order)
                order.append(target)
            row.append((chars, index))
        if len(order) > MAX_STATES:
            raise _too_many()
        rows.append(row)
    return nfa(rows, [accepts(state) for state in order])


def _too_many() -> RequestError:
    return too_large(
        f"the patterns, formats, lengths and multiples of one string or number need more than {MAX_STATES} states "
        "together: lower the counts, or leave out conditions"
    )


def _subsets(automaton: Nfa, *, most: int) -> Nfa | None:
    """Subset construction over the classes of characters that the automaton tells apart; None past `most` states."""
    moves = automaton.moves
    if all(_is_apart(row) for row in moves):
        return automaton
    classes, ranges = _classes({chars for row in moves for chars, _ in row})
    by_class = [[(index, target) for chars, target in row for index in classes[chars]] for row in moves]
    start: tuple[int, ...] = (0,)
    number = {start: 0}
    order = [start]
    rows: list[Row[int]] = []
    work = 0
    for members in order:
        reached: dict[int, set[int]] = {}
        for member in members:
            for index, target in by_class[member]:
                reached.setdefault(index, set()).add(target)
        by_target: dict[int, list[Range]] = {}
        for index in sorted(reached):
            key = tuple(sorted(reached[index]))
            work += len(key)
            target = number.get(key, -1)
            if target < 0:
                target = number[key] = len(order)
                order.append(key)
            by_target.setdefault(target, []).extend(ranges[index])
        rows.append([(charset(spans), target) for target, spans in by_target.items()])
        if len(order) > min(most, MAX_STATES) or work > MAX_WORK:
            return None
    return nfa(rows, [any(automaton.accepting[member] for member in members) for members in order])


def _is_apart(row: Sequence[tuple[CharSet, int]]) -> bool:
    """Whether no character leads two ways."""
    spans = sorted(span for chars, _ in row for span in chars.ranges)
    return all(left[1] < right[0] for left, right in pairwise(spans))


def _classes(sets: set[CharSet]) -> tuple[dict[CharSet, list[int]], list[list[Range]]]:
    """Characters that no set tells apart are one class: the classes that each set is made of, and their ranges."""
    cuts = sorted({edge for chars in sets for low, high in chars.ranges for edge in (low, high + 1)})
    index_of = {cut: index for index, cut in enumerate(cuts)}
    holders: list[list[int]] = [[] for _ in cuts]
    ordered = sorted(sets, key=lambda chars: chars.ranges)
    for number, chars in enumerate(ordered):
        for low, high in chars.ranges:
            for index in range(index_of[low], index_of[high + 1]):
                holders[index].append(number)
    known: dict[tuple[int, ...], int] = {}
    classes: dict[CharSet, list[int]] = {chars: [] for chars in sets}
    ranges: list[list[Range]] = []
    for index, held in enumerate(holders):
        key = tuple(held)
        if not key:
            continue
        if key not in known:
            known[key] = len(ranges)
            ranges.append([])
            for number in held:
                classes[ordered[number]].append(known[key])
        ranges[known[key]].append((cuts[index], cuts[index + 1] - 1))
    return classes, ranges
