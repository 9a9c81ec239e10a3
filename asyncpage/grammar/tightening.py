"""Makes a sketched network smaller and more deterministic: fewer rules, jumps and states, the same language.

The builder calls it after the trimming. The walk at run time pays for every jump it follows and every return it keeps.

INVARIANT: the root matches what it matched before.
"""

from __future__ import annotations

from asyncpage.grammar.sketch import Sketch

_FEW = 4  # ways out that are copied to where a jump begins, rather than jumped to


def tighten(sketch: Sketch) -> None:
    _inline(sketch)
    _skip_lone_jumps(sketch)
    _loop_tail_calls(sketch)
    _absorb(sketch)
    _copy_few(sketch)


def _inline(sketch: Sketch) -> None:
    """A rule that is called from one place becomes a part of it."""
    order, rules = sketch.reached()
    places: dict[int, int] = dict.fromkeys(rules, 0)
    for state in order:
        for rule, _ in sketch.calls[state]:
            places[rule] += 1
    for state in order:
        kept = []
        for rule, target in sketch.calls[state]:
            if rule and places[rule] == 1:
                sketch.jumps[state].append(sketch.starts[rule])
                sketch.jumps[sketch.finals[rule]].append(target)
            else:
                kept.append((rule, target))
        sketch.calls[state] = kept


def _loop_tail_calls(sketch: Sketch) -> None:
    """A rule that ends with itself goes back to its start: no return is due."""
    _, rules = sketch.reached()
    for rule in rules:
        start, final = sketch.starts[rule], sketch.finals[rule]
        known = {start}
        waiting = [start]
        while waiting:
            state = waiting.pop()
            if (rule, final) in sketch.calls[state]:
                sketch.calls[state] = [call for call in sketch.calls[state] if call != (rule, final)]
                sketch.jumps[state].append(start)
            targets = [target for _, _, target in sketch.edges[state]]
            targets += sketch.jumps[state]
            targets += [target for _, target in sketch.calls[state]]
            for target in targets:
                if target not in known:
                    known.add(target)
                    waiting.append(target)


def _skip_lone_jumps(sketch: Sketch) -> None:
    """A state whose only way out is a jump is the state that it jumps to."""
    order, rules = sketch.reached()
    finals = {sketch.finals[rule] for rule in rules}
    goes_to: dict[int, int] = {}
    for state in order:
        if state in finals or sketch.edges[state] or sketch.calls[state]:
            continue
        targets = set(sketch.jumps[state]) - {state}
        if len(targets) == 1:
            goes_to[state] = targets.pop()

    def end_of(state: int) -> int:
        passed = []
        while state in goes_to:
            passed.append(state)
            state = goes_to.pop(state)  # a ring of jumps ends where it was entered; trimmed networks have none
        for one in passed:
            goes_to[one] = state
        return state

    for state in order:
        if state in goes_to:
            continue
        sketch.edges[state] = [(low, high, end_of(target)) for low, high, target in sketch.edges[state]]
        sketch.jumps[state] = [end_of(target) for target in sketch.jumps[state]]
        sketch.calls[state] = [(rule, end_of(target)) for rule, target in sketch.calls[state]]
    for rule in rules:
        sketch.starts[rule] = end_of(sketch.starts[rule])


def _absorb(sketch: Sketch) -> None:
    """A state whose only way in is a jump becomes a part of the state that jumps to it."""
    order, rules = sketch.reached()
    fixed = {sketch.finals[rule] for rule in rules} | {sketch.starts[rule] for rule in rules}
    ways_in: dict[int, int] = dict.fromkeys(order, 0)
    for state in order:
        for _, _, target in sketch.edges[state]:
            ways_in[target] += 1
        for target in sketch.jumps[state]:
            ways_in[target] += 1
        for _, target in sketch.calls[state]:
            ways_in[target] += 1
    gone: set[int] = set()
    for state in order:
        if state in gone:
            continue
        waiting = sketch.jumps[state]
        sketch.jumps[state] = []
        while waiting:
            target = waiting.pop(0)
            if ways_in[target] != 1 or target in fixed or target == state:
                sketch.jumps[state].append(target)
                continue
            gone.add(target)
            sketch.edges[state] += sketch.edges[target]
            sketch.calls[state] += sketch.calls[target]
            waiting += sketch.jumps[target]


def _copy_few(sketch: Sketch) -> None:
    """A jump to a state with few ways out is those ways."""
    order, rules = sketch.reached()
    finals = {sketch.finals[rule] for rule in rules}
    for state in reversed(order):
        kept = []
        for target in sketch.jumps[state]:
            ways = len(sketch.edges[target]) + len(sketch.calls[target])
            if target in finals or sketch.jumps[target] or ways > _FEW or target == state:
                kept.append(target)
            else:
                sketch.edges[state] += sketch.edges[target]
                sketch.calls[state] += sketch.calls[target]
        sketch.jumps[state] = kept
