"""Takes out of a sketched network what cannot be finished: a state that no ending can be reached from.

The builder calls it first. A model that walked into such a state could never end its answer.

INVARIANT: after it, every state that is left can reach its rule's final state, through rules that can be finished.
"""

from __future__ import annotations

from asyncpage.grammar.sketch import Sketch


def trim(sketch: Sketch) -> bool:
    """Whether anything can match the root; then only ways that can be finished are left."""
    is_alive = _alive(sketch)
    for state, edges in enumerate(sketch.edges):
        if not is_alive[state]:
            sketch.edges[state] = []
            sketch.jumps[state] = []
            sketch.calls[state] = []
            continue
        sketch.edges[state] = [edge for edge in edges if is_alive[edge[2]]]
        sketch.jumps[state] = [target for target in sketch.jumps[state] if is_alive[target]]
        sketch.calls[state] = [
            (rule, target) for rule, target in sketch.calls[state] if is_alive[target] and is_alive[sketch.starts[rule]]
        ]
    return is_alive[sketch.starts[0]]


def _alive(sketch: Sketch) -> list[bool]:
    """By state, whether its rule's final state can be reached: a walk backwards from the final states."""
    size = len(sketch.edges)
    before: list[list[int]] = [[] for _ in range(size)]  # by target, without the calls
    after_call: list[list[tuple[int, int]]] = [[] for _ in range(size)]  # by target: source, rule
    for state in range(size):
        for _, _, target in sketch.edges[state]:
            before[target].append(state)
        for target in sketch.jumps[state]:
            before[target].append(state)
        for rule, target in sketch.calls[state]:
            after_call[target].append((state, rule))
    rules_of: dict[int, list[int]] = {}
    for rule, start in enumerate(sketch.starts):
        rules_of.setdefault(start, []).append(rule)
    is_finishable = [False] * len(sketch.starts)
    callers: list[list[int]] = [[] for _ in sketch.starts]  # states that wait for a rule to be finishable
    is_alive = [False] * size
    waiting = list(sketch.finals)
    while waiting:
        state = waiting.pop()
        if is_alive[state]:
            continue
        is_alive[state] = True
        waiting += before[state]
        for source, rule in after_call[state]:
            if is_finishable[rule]:
                waiting.append(source)
            else:
                callers[rule].append(source)
        for rule in rules_of.get(state, ()):
            is_finishable[rule] = True
            waiting += callers[rule]
    return is_alive
