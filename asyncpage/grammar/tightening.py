"""Makes a sketched network smaller and more deterministic: fewer rules, jumps and states, the same language.

The builder calls it after the trimming. The walk at run time pays for every jump it follows and every return it keeps.

INVARIANT: the root matches what it matched before.
"""

from __future__ import annotations

from asyncpage.grammar.sketch import Sketch

_FEW = 4  # ways out that are copied to where a jump begins, rather than jumped to


def tighten(sketch: Sketch) -> None:
    """Rewrites a sketch of which every state can be reached and finished."""
    _inline(sketch)
    _skip_lone_jumps(sketch)
    _loop_tail_calls(sketch)
    _absorb(sketch)
    _copy_few(sketch)


def _inline(sketch: Sketch) -> None:
    """A rule that is called from one place becomes a part of it; a rule that calls itself has two at least."""
    places = [0] * len(sketch.starts)
    for calls in sketch.calls:
        for rule, _ in calls:
            places[rule] += 1
    places[0] = 0
    if 1 not in places:
        return
    for state, calls in enumerate(sketch.calls):
        if any(places[rule] == 1 for rule, _ in calls):
            sketch.calls[state] = [call for call in calls if places[call[0]] != 1]
            for rule, target in calls:
                if places[rule] == 1:
                    sketch.jumps[state].append(sketch.starts[rule])
                    sketch.jumps[sketch.finals[rule]].append(target)
                    # Nobody calls it now. It stands where the root does until the numbering leaves it out.
                    sketch.starts[rule], sketch.finals[rule] = sketch.starts[0], sketch.finals[0]


def _skip_lone_jumps(sketch: Sketch) -> None:
    """A state whose only way out is a jump is the state that it jumps to."""
    finals = set(sketch.finals)
    goes_to: dict[int, int] = {}
    for state, jumps in enumerate(sketch.jumps):
        if jumps and state not in finals and not sketch.edges[state] and not sketch.calls[state]:
            targets = set(jumps)
            if len(targets) == 1:
                goes_to[state] = targets.pop()
    if not goes_to:
        return

    def end_of(state: int) -> int:
        if state not in goes_to:
            return state
        passed = []
        while state in goes_to:
            passed.append(state)
            state = goes_to.pop(state)  # never back to one that was passed: a ring could not be finished
        for one in passed:
            goes_to[one] = state
        return state

    for state, edges in enumerate(sketch.edges):
        sketch.edges[state] = [(low, high, end_of(target)) for low, high, target in edges]
        if sketch.jumps[state]:
            is_gone = state in goes_to
            sketch.jumps[state] = [] if is_gone else [end_of(target) for target in sketch.jumps[state]]
        if sketch.calls[state]:
            sketch.calls[state] = [(rule, end_of(target)) for rule, target in sketch.calls[state]]
    sketch.starts = [end_of(start) for start in sketch.starts]


def _loop_tail_calls(sketch: Sketch) -> None:
    """A rule that ends with itself goes back to its start: no return is due."""
    ends_with = {rule for calls in sketch.calls for rule, target in calls if target == sketch.finals[rule]}
    for rule in sorted(ends_with):
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


def _absorb(sketch: Sketch) -> None:
    """A state whose only way in is a jump becomes a part of the state that jumps to it."""
    ways_in = [0] * len(sketch.edges)
    for edges in sketch.edges:
        for _, _, target in edges:
            ways_in[target] += 1
    for jumps in sketch.jumps:
        for target in jumps:
            ways_in[target] += 1
    for calls in sketch.calls:
        for _, target in calls:
            ways_in[target] += 1
    for state in (*sketch.starts, *sketch.finals):
        ways_in[state] += 2  # stays
    for state, jumps in enumerate(sketch.jumps):
        if not jumps:
            continue
        waiting = jumps[::-1]
        sketch.jumps[state] = []
        while waiting:
            target = waiting.pop()
            if ways_in[target] != 1 or target == state:
                sketch.jumps[state].append(target)
                continue
            sketch.edges[state] = sketch.edges[state] + sketch.edges[target]
            sketch.calls[state] = sketch.calls[state] + sketch.calls[target]
            waiting += sketch.jumps[target][::-1]
            sketch.edges[target], sketch.jumps[target], sketch.calls[target] = [], [], []


def _copy_few(sketch: Sketch) -> None:
    """A jump to a state with few ways out is those ways."""
    finals = set(sketch.finals)
    for state in range(len(sketch.jumps) - 1, -1, -1):
        kept = []
        for target in sketch.jumps[state]:
            ways = len(sketch.edges[target]) + len(sketch.calls[target])
            if target in finals or sketch.jumps[target] or ways > _FEW or target == state:
                kept.append(target)
            else:
                sketch.edges[state] = sketch.edges[state] + sketch.edges[target]
                sketch.calls[state] = sketch.calls[state] + sketch.calls[target]
        sketch.jumps[state] = kept
