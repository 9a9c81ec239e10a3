"""A network while it is made: lists of ways out of every state, which the passes rewrite.

The builder fills it, `trimming` and `tightening` rewrite it, and it gives the network.

INVARIANT: equal sketches give equal networks: states are numbered in the order in which a walk from the root meets
them, edges are sorted, and what is not met is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncpage.grammar.network import Network
from asyncpage.messages import Int32

Edge = tuple[int, int, int]  # low, high, target
Call = tuple[int, int]  # rule, target


class Sketch:
    """By state: `edges`, `jumps` to targets, `calls`. By rule: `starts` and `finals`."""

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

    def reached(self) -> tuple[list[int], list[int]]:
        """The states and the rules that a walk from the root meets, in the order in which it meets them."""
        rules = [0]
        known_rules = {0}
        order: list[int] = []
        known: set[int] = set()
        for rule in rules:
            waiting = [self.finals[rule], self.starts[rule]]
            while waiting:
                state = waiting.pop()
                if state in known:
                    continue
                known.add(state)
                order.append(state)
                for called, _ in self.calls[state]:
                    if called not in known_rules:
                        known_rules.add(called)
                        rules.append(called)
                waiting += [target for _, target in reversed(self.calls[state])]
                waiting += reversed(self.jumps[state])
                waiting += [target for _, _, target in reversed(self.edges[state])]
        return order, rules

    def to_network(self) -> Network:
        """The network of what can be reached."""
        order, rules = self.reached()
        number = {state: index for index, state in enumerate(order)}
        rule_number = {rule: index for index, rule in enumerate(rules)}
        edges: list[tuple[int, int, int, int]] = []
        jumps: list[tuple[int, int]] = []
        calls: list[tuple[int, int, int]] = []
        for source, state in enumerate(order):
            edges += [(source, low, high, number[target]) for low, high, target in _joined(self.edges[state])]
            jumps += [(source, number[target]) for target in dict.fromkeys(self.jumps[state])]
            calls += [(source, rule_number[rule], number[target]) for rule, target in dict.fromkeys(self.calls[state])]
        return Network(
            len(order),
            _column([number[self.starts[rule]] for rule in rules]),
            _column([number[self.finals[rule]] for rule in rules]),
            _column(edges).reshape(-1, 4),
            _column(jumps).reshape(-1, 2),
            _column(calls).reshape(-1, 3),
        )


def _joined(edges: list[Edge]) -> list[Edge]:
    """Edges to one target, as few as can be, then all sorted."""
    if len(edges) < 2:
        return edges
    joined: list[Edge] = []
    for target, low, high in sorted((target, low, high) for low, high, target in edges):
        if joined and joined[-1][2] == target and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high), target)
        else:
            joined.append((low, high, target))
    return sorted(joined)


def _column(values: Sequence[int | tuple[int, ...]]) -> Int32:
    return np.array(values, dtype=np.int32)
