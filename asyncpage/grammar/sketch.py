"""A network while it is made: lists of ways out of every state, which the passes rewrite.

The builder fills it, `trimming` and `tightening` rewrite it, and it gives the network.

INVARIANT: equal sketches give equal networks: states are numbered in the order in which a walk from the root meets
them, edges are sorted, and what is not met is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncpage.grammar.network import Int32, Network

Edge = tuple[int, int, int]  # low, high, target
Call = tuple[int, int]  # rule, target


class Sketch:
    """By state: `edges`, `jumps` to targets, `calls`. By rule: `starts` and `finals`; rule 0 is the root."""

    def __init__(self) -> None:
        self.edges: list[list[Edge]] = []
        self.jumps: list[list[int]] = []
        self.calls: list[list[Call]] = []
        self.starts: list[int] = []
        self.finals: list[int] = []

    def add_state(self) -> int:
        self.edges.append([])
        self.jumps.append([])
        self.calls.append([])
        return len(self.edges) - 1

    def renumber(self) -> None:
        """Leave out what a walk from the root does not meet; number the rest in the order in which it is met."""
        order, rules = self._met()
        number = [-1] * len(self.edges)
        for index, state in enumerate(order):
            number[state] = index
        rule_number = {rule: index for index, rule in enumerate(rules)}
        self.edges = [[(low, high, number[target]) for low, high, target in self.edges[state]] for state in order]
        jumps, calls = self.jumps, self.calls
        self.jumps = [[number[target] for target in jumps[state]] if jumps[state] else [] for state in order]
        self.calls = [
            [(rule_number[rule], number[target]) for rule, target in calls[state]] if calls[state] else []
            for state in order
        ]
        self.starts = [number[self.starts[rule]] for rule in rules]
        self.finals = [number[self.finals[rule]] for rule in rules]

    def _met(self) -> tuple[list[int], list[int]]:
        rules = [0]
        known_rules = {0}
        order: list[int] = []
        is_known = bytearray(len(self.edges))
        for rule in rules:
            waiting = [self.finals[rule], self.starts[rule]]
            while waiting:
                state = waiting.pop()
                if is_known[state]:
                    continue
                is_known[state] = 1
                order.append(state)
                for called, target in self.calls[state]:
                    waiting.append(target)
                    if called not in known_rules:
                        known_rules.add(called)
                        rules.append(called)
                waiting += self.jumps[state]
                waiting += [target for _, _, target in self.edges[state]]
        return order, rules

    def to_network(self) -> Network:
        self.renumber()
        edges: list[tuple[int, ...]] = []
        jumps: list[tuple[int, ...]] = []
        calls: list[tuple[int, ...]] = []
        for state, ways in enumerate(self.edges):
            edges += [(state, low, high, target) for low, high, target in _joined(ways)]
            jumps += [(state, target) for target in dict.fromkeys(self.jumps[state])]
            calls += [(state, rule, target) for rule, target in dict.fromkeys(self.calls[state])]
        return Network(
            len(self.edges),
            _column(self.starts),
            _column(self.finals),
            _column(edges).reshape(-1, 4),
            _column(jumps).reshape(-1, 2),
            _column(calls).reshape(-1, 3),
        )


def _joined(edges: list[Edge]) -> list[Edge]:
    """Edges to one target, as few as can be, then all sorted."""
    if len(edges) < 2:
        return edges
    joined: list[Edge] = []
    for target, low, high in sorted([(target, low, high) for low, high, target in edges]):
        if joined and joined[-1][2] == target and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high), target)
        else:
            joined.append((low, high, target))
    return sorted(joined)


def _column(values: Sequence[int | tuple[int, ...]]) -> Int32:
    return np.array(values, dtype=np.int32)
