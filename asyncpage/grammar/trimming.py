"""Takes out of a sketched network what no text can use: states and rules that cannot be reached, or not be finished.

The builder calls it first. A model that walked into a state without an end could never end its answer.

INVARIANT: after it, every state that is left can be reached from the root's start and can reach its rule's final state.
"""

from __future__ import annotations

from asyncpage.grammar.sketch import Sketch


def trim(sketch: Sketch) -> bool:
    """Whether anything can match the root; then only what a text can use is left, numbered anew."""
    is_alive = _alive(sketch)
    if not is_alive[sketch.starts[0]]:
        return False
    for state, calls in enumerate(sketch.calls):
        if not is_alive[state]:
            continue  # nothing that is alive leads there
        sketch.edges[state] = [edge for edge in sketch.edges[state] if is_alive[edge[2]]]
        if sketch.jumps[state]:
            sketch.jumps[state] = [target for target in sketch.jumps[state] if is_alive[target]]
        if calls:
            sketch.calls[state] = [
                (rule, target) for rule, target in calls if is_alive[target] and is_alive[sketch.starts[rule]]
            ]
    sketch.renumber()
    return True


def _alive(sketch: Sketch) -> list[bool]:
    """By state, whether its rule's final state can be reached: a walk backwards from the final states."""
    size = len(sketch.edges)
    before: list[list[int]] = [[] for _ in range(size)]  # by target, without the calls
    after_call: dict[int, list[tuple[int, int]]] = {}  # by target: source, rule
    for state in range(size):
        for _, _, target in sketch.edges[state]:
            before[target].append(state)
        for target in sketch.jumps[state]:
            before[target].append(state)
        for rule, target in sketch.calls[state]:
            after_call.setdefault(target, []).append((state, rule))
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
        for source, rule in after_call.get(state, ()):
            if is_finishable[rule]:
                waiting.append(source)
            else:
                callers[rule].append(source)
        for rule in rules_of.get(state, ()):
            is_finishable[rule] = True
            waiting += callers[rule]
    return is_alive
