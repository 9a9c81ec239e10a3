"""A network's configurations: a state and the returns that are still due, as one number; what they close over.

The automaton asks it for closures and moves, and makes its own states of sets of configurations.

A configuration is `frame << STATE_BITS | state`. A frame is a return that is due: when its `final` state is reached,
the walk goes on at `back` in the frame below. Frames are interned, so that equal stacks are one number. A call whose
return would do nothing but return again takes its caller's place instead (a tail call), so a list does not nest.

INVARIANT: a closure has at most `MAX_CLOSURE` configurations and no stack is deeper than `MAX_DEPTH`: what would be
deeper is not allowed, as if the grammar said so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from asyncpage.grammar.backend import GrammarLimit
from asyncpage.grammar.network import Int32, Network

STATE_BITS = 18  # MAX_STATES is below 2 ** 18
_STATE = (1 << STATE_BITS) - 1

MAX_DEPTH = 200  # people's JSON nests a dozen deep, parsers give up at some hundreds
MAX_CLOSURE = 10_000  # configurations at once: an ambiguity that no grammar made for answers has
MAX_KEPT = 200_000  # closures with their configurations, and frames, together: some 20 MB

_NO_RETURN = -1
_MOST_JUMPS = 16  # of a call's return, before it is taken for one that has more to do


class GrammarFull(GrammarLimit):
    """What was found out about a grammar has become too much to keep: a fresh automaton can go on."""


class Configurations:
    """The network's edges by state, its frames and closures. `classes` [256]: of each byte; no edge tells bytes of
    one class apart, and a class is a run of bytes. `class_count`: how many."""

    def __init__(self, network: Network) -> None:
        self._network = network
        starts = np.zeros(257, dtype=np.bool_)
        starts[0] = True
        starts[network.edges[:, 1]] = True
        starts[network.edges[:, 2] + 1] = True
        self.classes: NDArray[np.int64] = np.cumsum(starts[:256]) - 1
        self.class_count = int(self.classes[-1]) + 1
        self._edges = _BySource(
            network.states,
            network.edges[:, 0],
            self.classes[network.edges[:, 1]],
            self.classes[network.edges[:, 2]],
            network.edges[:, 3],
        )
        self._jumps = _BySource(network.states, network.jumps[:, 0], network.jumps[:, 1])
        rules = network.calls[:, 1]
        self._calls = _BySource(
            network.states, network.calls[:, 0], network.starts[rules], network.finals[rules], network.calls[:, 2]
        )
        # (final, back, frame below, depth); frame 0 is the root's, whose return is the end.
        self._frames: list[tuple[int, int, int, int]] = [(int(network.finals[0]), _NO_RETURN, 0, 0)]
        self._frame_ids: dict[tuple[int, int, int], int] = {self._frames[0][:3]: 0}
        self._stacks: dict[int, int] = {0: 0}
        self._stack_ids: dict[tuple[int, int, int], int] = {}
        self._ends: dict[int, int] = {}
        self._closures: dict[int, tuple[tuple[int, ...], bool]] = {}
        self.kept = 0  # of `MAX_KEPT`

    @property
    def start(self) -> int:
        return int(self._network.starts[0])

    def close(self, kernel: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
        """The configurations with edges that `kernel` leads to without a byte, sorted, and whether one is the end.

        Errors: `GrammarLimit` when there are too many, `GrammarFull` when too much is kept.
        """
        if len(kernel) == 1:
            return self._close_one(kernel[0])
        core: set[int] = set()
        is_end = False
        for configuration in kernel:
            more, ends = self._close_one(configuration)
            core.update(more)
            is_end |= ends
            if len(core) > MAX_CLOSURE:
                raise _too_ambiguous()
        return tuple(sorted(core)), is_end

    def moves(self, core: tuple[int, ...]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """(first class, last class, kernel) of every byte class that leads on, in order; neighbours differ."""
        spans: list[tuple[int, int, int]] = []
        for configuration in core:
            state = configuration & _STATE
            frame = configuration - state
            spans += [(low, high, frame | target) for low, high, target in self._edges.of(state)]
        if len(spans) == 1:
            low, high, target = spans[0]
            yield low, high, (target,)
            return
        spans.sort()
        changes = sorted({low for low, _, _ in spans} | {high + 1 for _, high, _ in spans})
        reached: list[tuple[int, int]] = []  # (last class, target) of the spans that go on
        at, most = 0, len(spans)
        for low, end in pairwise(changes):
            reached = [span for span in reached if span[0] >= low]
            while at < most and spans[at][0] <= low:
                reached.append(spans[at][1:])
                at += 1
            if len(reached) == 1:
                yield low, end - 1, (reached[0][1],)
            elif reached:
                yield low, end - 1, tuple(sorted({target for _, target in reached}))

    def move(self, core: tuple[int, ...], byte_class: int) -> tuple[int, ...]:
        """The kernel that one byte class leads to."""
        reached = {
            configuration - (configuration & _STATE) | target
            for configuration in core
            for low, high, target in self._edges.of(configuration & _STATE)
            if low <= byte_class <= high
        }
        return tuple(sorted(reached))

    def likeness(self, core: tuple[int, ...], colours: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """What two sets of configurations have in common that allow the same tokens: each one's state and the states
        that its returns lead to, by their colours (`likeness.py`)."""
        return tuple(sorted({(colours[one & _STATE], self._stack(one >> STATE_BITS, colours)) for one in core}))

    def _stack(self, frame: int, colours: Sequence[int]) -> int:
        """A number for a frame, the same for frames that are alike."""
        unknown = []
        while frame not in self._stacks:
            unknown.append(frame)
            frame = self._frames[frame][2]
        number = self._stacks[frame]
        for frame in reversed(unknown):
            final, back, _, _ = self._frames[frame]
            key = (final, colours[back], number)
            number = self._stacks[frame] = self._stack_ids.setdefault(key, len(self._stack_ids) + 1)
        return number

    def _close_one(self, first: int) -> tuple[tuple[int, ...], bool]:
        known = self._closures.get(first)
        if known is not None:
            return known
        if self.kept > MAX_KEPT:
            raise GrammarFull(f"the grammar's walk needs more than {MAX_KEPT} closures")
        edges, jumps, calls, frames = self._edges, self._jumps, self._calls, self._frames
        core: list[int] = []
        is_end = False
        seen = {first}
        waiting = [first]
        while waiting:
            configuration = waiting.pop()
            state, frame = configuration & _STATE, configuration >> STATE_BITS
            if edges.of(state):
                core.append(configuration)
            reached = [configuration - state | target for (target,) in jumps.of(state)]
            for start, final, target in calls.of(state):
                called = self._call(frame, final, target)
                if called is not None:
                    reached.append(called << STATE_BITS | start)
            final, back, below, _ = frames[frame]
            if state == final:
                if back == _NO_RETURN:
                    is_end = True
                else:
                    reached.append(below << STATE_BITS | back)
            for one in reached:
                if one not in seen:
                    seen.add(one)
                    waiting.append(one)
            if len(seen) > MAX_CLOSURE:
                raise _too_ambiguous()
        core.sort()
        closure = tuple(core), is_end
        self._closures[first] = closure
        self.kept += 1 + len(core)
        return closure

    def _call(self, frame: int, final: int, target: int) -> int | None:
        """The frame in which a rule with this final state runs, to go on at `target` in `frame`. None: too deep."""
        own_final, back, below, depth = self._frames[frame]
        is_tail = self._end_of(target) == own_final
        key = (final, back, below) if is_tail else (final, target, frame)
        known = self._frame_ids.get(key)
        if known is not None:
            return known
        if not is_tail:
            depth += 1
        if depth > MAX_DEPTH:
            return None
        self._frames.append((*key, depth))
        self._frame_ids[key] = len(self._frames) - 1
        self.kept += 1
        return len(self._frames) - 1

    def _end_of(self, state: int) -> int:
        """The state in which a walk from here must end without a byte; -1 where it need not."""
        end = self._ends.get(state)
        if end is None:
            end, at, left = -1, state, _MOST_JUMPS
            while left and not (self._edges.of(at) or self._calls.of(at)):
                jumps = self._jumps.of(at)
                if not jumps:
                    end = at
                if len(jumps) != 1:
                    break
                at, left = jumps[0][0], left - 1
            self._ends[state] = end
        return end


class _BySource:
    """Rows of columns by the state that they begin in, made into tuples when a state is first asked for."""

    def __init__(self, states: int, sources: Int32, *columns: NDArray[np.integer]) -> None:
        order = np.argsort(sources, kind="stable")
        self._columns = np.stack([column[order] for column in columns], axis=1)
        self._starts = np.concatenate(([0], np.cumsum(np.bincount(sources, minlength=states)))).tolist()
        self._known: dict[int, list[tuple[int, ...]]] = {}

    def of(self, state: int) -> list[tuple[int, ...]]:
        known = self._known.get(state)
        if known is None:
            start, end = self._starts[state : state + 2]
            known = list(map(tuple, self._columns[start:end].tolist())) if end > start else []
            self._known[state] = known
        return known


def _too_ambiguous() -> GrammarLimit:
    return GrammarLimit(f"the grammar can be read in more than {MAX_CLOSURE} ways at one place")
