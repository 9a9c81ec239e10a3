"""Writes automata over characters, and lists of texts, into a network of bytes.

Every compiler calls it. A character of several bytes is written out where that is cheap, and else as a call of a rule
that all its places share.

INVARIANT: what is written between two states matches exactly the spellings of the automaton's texts, and one byte
leads to one state as far as the automaton is deterministic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from asyncpage.grammar.builder import NetworkBuilder
from asyncpage.grammar.charset import CharSet
from asyncpage.grammar.nfa import Nfa
from asyncpage.grammar.spelling import ByteTree

Spelling = Callable[[CharSet], ByteTree]

_WRITTEN_OUT = 64  # states for all places of one set together; past it they share a rule


class Writer:
    """`spelling`: how a character is written. It remembers the rules that it has made in its builder."""

    def __init__(self, builder: NetworkBuilder, spelling: Spelling) -> None:
        self._builder = builder
        self._spelling = spelling
        self._rules: dict[ByteTree, int] = {}

    def write(self, automaton: Nfa, source: int, target: int, close: bytes = b"") -> None:
        """The automaton's texts, each followed by `close`, from `source` to `target`."""
        builder = self._builder
        is_entered = any(to == 0 for row in automaton.moves for _, to in row)
        states = [
            target if accepts and not row and not close and index else -1
            for index, (row, accepts) in enumerate(zip(automaton.moves, automaton.accepting, strict=True))
        ]
        states = [
            builder.state() if state < 0 and (index or is_entered) else state for index, state in enumerate(states)
        ]
        trees = [[(self._spelling(chars), to) for chars, to in row] for row in automaton.moves]
        places = Counter(tree.long for row in trees for tree, _ in row)
        if is_entered:
            places.update(tree.long for tree, _ in trees[0])
        is_ruled = {long: count * long.size > _WRITTEN_OUT for long, count in places.items()}
        for index, row in enumerate(trees):
            for here in {source, states[0]} - {-1} if index == 0 else {states[index]}:
                if automaton.accepting[index] and here != target:
                    builder.literal(here, close, target)
                for tree, to in row:
                    self.character(tree, here, states[to], is_ruled=is_ruled[tree.long])

    def character(self, tree: ByteTree, source: int, target: int, *, is_ruled: bool) -> None:
        """One character; what has several bytes by a rule that is shared, or written out."""
        if not is_ruled:
            self._written_out(tree, source, target)
            return
        for low, high, rest in tree.ways:
            if rest is None:
                self._builder.byte(source, low, high, target)
        self._builder.call(source, self._rule(tree.long), target)

    def _rule(self, tree: ByteTree) -> int:
        rule = self._rules.get(tree)
        if rule is None:
            rule = self._rules[tree] = self._builder.rule()
            self._written_out(tree, self._builder.start(rule), self._builder.final(rule))
        return rule

    def _written_out(self, tree: ByteTree, source: int, target: int) -> None:
        """Equal tails are shared."""
        nodes: dict[ByteTree, int] = {}

        def add(here: ByteTree, at: int) -> None:
            for low, high, rest in here.ways:
                if rest is None:
                    self._builder.byte(at, low, high, target)
                    continue
                known = nodes.get(rest)
                if known is None:
                    known = nodes[rest] = self._builder.state()
                    add(rest, known)
                self._builder.byte(at, low, high, known)

        add(tree, source)


def write_words(builder: NetworkBuilder, words: Iterable[bytes], source: int, target: int) -> None:
    """One of these byte strings from `source` to `target`: the smallest deterministic network that there is.

    Sorted words are a trie; its equal subtrees, met from the last node back, are one state.
    """
    children: list[dict[int, int]] = [{}]
    is_word = [False]
    for word in words:
        node = 0
        for byte in word:
            after = children[node].get(byte)
            if after is None:
                after = children[node][byte] = len(children)
                children.append({})
                is_word.append(False)
            node = after
        is_word[node] = True
    known: dict[tuple[bool, tuple[tuple[int, int], ...]], int] = {}
    same = [0] * len(children)
    for node in range(len(children) - 1, -1, -1):
        key = (is_word[node], tuple(sorted((byte, same[to]) for byte, to in children[node].items())))
        same[node] = known.setdefault(key, node)
    states: dict[int, int] = {same[0]: source}
    for node in range(len(children)):
        if same[node] == node and node:
            states[node] = builder.state() if children[node] else target
    for node, state in states.items():
        if is_word[node] and state != target:
            builder.jump(state, target)
        for byte, to in children[node].items():
            builder.byte(state, byte, byte, states[same[to]])
