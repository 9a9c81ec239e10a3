"""A grammar at work: which tokens may come next, and where each leads.

The executor keeps one for every grammar that its rows follow. States are sets of the network's configurations, made
when they are first reached: a byte class is a column of a table of states, a mask is one walk of the lexicon's trie
over that table, level by level, for all tokens at once.

INVARIANT: a token is in the mask of a state exactly when its bytes can be walked from there; states, stacks and
closures are bounded, and what is past a bound raises `GrammarLimit`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncpage.grammar.configuration import Configurations, GrammarFull
from asyncpage.grammar.lexicon import Lexicon
from asyncpage.grammar.masks import MaskCache
from asyncpage.grammar.network import Network
from asyncpage.messages import Int32

Bits = NDArray[np.uint8]
Int64 = NDArray[np.int64]

DEAD = -1
MAX_TABLE_BYTES = 32 << 20

_DEAD, _UNKNOWN = 0, -1
_FEW = 4  # a level of which less than a quarter is reached is walked by its reached nodes alone


class Automaton:
    """`mask_cache`: shared with others, so that all masks together are bounded; its own without one."""

    def __init__(self, network: Network, lexicon: Lexicon, mask_cache: MaskCache | None = None) -> None:
        self._configurations = Configurations(network)
        self._lexicon = lexicon
        self._masks = MaskCache() if mask_cache is None else mask_cache
        self._width = self._configurations.class_count
        self._class_of = self._configurations.classes.tolist()
        self._node_classes = self._configurations.classes[lexicon.bytes]
        self._cores: list[tuple[int, ...]] = [()]
        self._is_end: list[bool] = [False]
        self._ids: dict[tuple[tuple[int, ...], bool], int] = {((), False): _DEAD}
        self._kernels: dict[tuple[int, ...], int] = {(): _DEAD}
        # The rows twice: as one table for many look-ups at once, and as lists, None where not known, for single ones.
        self._table: Int64 = np.zeros(64 * self._width, dtype=np.int64)
        self._rows: list[list[int] | None] = [[_DEAD] * self._width]
        self.start = self._state_of((self._configurations.start,)) or DEAD

    @property
    def states(self) -> int:
        """How many there are so far, with the dead one."""
        return len(self._cores)

    @property
    def size_bytes(self) -> int:
        """What its table takes, as lists too."""
        return 16 * self._width * self.states

    def advance(self, state: int, token: int) -> int:
        """Where a token leads, `DEAD` when it is not allowed. Errors: `GrammarLimit`."""
        data = self._lexicon.token_bytes[token] if 0 <= token < len(self._lexicon.token_bytes) else b""
        return self.walk(state, data) if data else DEAD

    def walk(self, state: int, data: bytes) -> int:
        """Where bytes lead, `DEAD` when nowhere. Errors: `GrammarLimit`."""
        if state == DEAD:
            return DEAD
        rows, class_of = self._rows, self._class_of
        for byte in data:
            state = (rows[state] or self._fill(state))[class_of[byte]]
            if state == _DEAD:
                return DEAD
        return state

    def accepts(self, data: bytes) -> bool:
        """Whether these bytes are a whole text of the grammar. Errors: `GrammarLimit`."""
        return self.may_end(self.walk(self.start, data))

    def may_end(self, state: int) -> bool:
        """Whether the text may be over here."""
        return state != DEAD and self._is_end[state]

    def mask(self, state: int) -> Bits:
        """The tokens that may come next: a bit a token, the lowest first, read-only. Errors: `GrammarLimit`."""
        if state == DEAD:
            return np.zeros(self._lexicon.mask_bytes, dtype=np.uint8)
        known = self._masks.get((self, state))
        if known is None:
            known = self._walk_all(state)
            self._masks.put((self, state), known)
        return known

    def has_mask(self, state: int) -> bool:
        """Whether `mask` is a look-up."""
        return state == DEAD or (self, state) in self._masks

    # --- the walk -----------------------------------------------------------------------------------------------------

    def _walk_all(self, state: int) -> Bits:
        """All tokens at once: the state that each node of the trie is reached in, level by level, parents first."""
        lexicon, classes = self._lexicon, self._node_classes
        children, parents = lexicon.children, lexicon.parents
        reached = np.zeros(len(lexicon), dtype=np.int64)  # the state at each node, 0 where none is
        reached[0] = state
        before, total = 0, 1  # the first node of the level above; how many nodes are reached in all
        for first, end in zip(lexicon.levels, lexicon.levels[1:], strict=False):
            alive = int(np.count_nonzero(reached[before:first]))
            if not alive:
                break
            if alive * _FEW >= first - before:
                self._step(reached[parents[first:end]], classes[first:end], reached[first:end])
            else:
                above = before + np.flatnonzero(reached[before:first])
                nodes, counts = _spans(children, above)
                states = np.empty(len(nodes), dtype=np.int64)
                self._step(np.repeat(reached[above], counts), classes[nodes], states)
                reached[nodes] = states
            before, total = first, total + alive
        else:
            self._walk_deep(reached)
        reached[0] = 0  # whatever it is: no token is empty
        allowed = np.zeros(lexicon.vocab_size, dtype=np.bool_)
        if total * _FEW < len(lexicon):
            allowed[lexicon.tokens[_spans(lexicon.places, np.flatnonzero(reached))[0]]] = True
        else:
            np.not_equal(reached[lexicon.nodes], 0, out=allowed)
        bits = np.packbits(allowed, bitorder="little")
        bits.flags.writeable = False
        return bits

    def _step(self, states: Int64, classes: Int64, out: Int64) -> None:
        """Where each of `states` goes with the class beside it. What is not known yet is found out first."""
        states *= self._width
        states += classes
        self._table.take(states, out=out, mode="clip")  # they are in range; "raise" would go by a buffer
        if len(out) and int(out.min()) == _UNKNOWN:
            is_asked = np.zeros(self.states, dtype=np.bool_)
            is_asked[states[out == _UNKNOWN] // self._width] = True
            for state in np.flatnonzero(is_asked).tolist():
                self._fill(state)
            self._table.take(states, out=out, mode="clip")

    def _walk_deep(self, reached: Int64) -> None:
        """The levels with so few nodes that one at a time is faster: the ends of the longest tokens."""
        base, deep, class_of, rows = self._lexicon.deep_base, self._lexicon.deep, self._class_of, self._rows
        states = reached[base:].tolist()
        for node, parent, byte in deep:
            state = states[parent]
            if state:
                states[node] = (rows[state] or self._fill(state))[class_of[byte]]
        reached[base:] = states

    # --- the table ----------------------------------------------------------------------------------------------------

    def _fill(self, state: int) -> list[int]:
        """Find out where every byte class leads from a state: its row. Errors: `GrammarLimit`."""
        row = [_DEAD] * self._width
        for low, high, kernel in self._configurations.moves(self._cores[state]):
            row[low : high + 1] = [self._state_of(kernel)] * (high + 1 - low)
        self._table[state * self._width : (state + 1) * self._width] = row
        self._rows[state] = row
        return row

    def _state_of(self, kernel: tuple[int, ...]) -> int:
        known = self._kernels.get(kernel)
        if known is not None:
            return known
        closure = self._configurations.close(kernel)
        state = self._ids.get(closure)
        if state is None:
            state = self._add(closure)
        self._kernels[kernel] = state
        return state

    def _add(self, closure: tuple[tuple[int, ...], bool]) -> int:
        state = len(self._cores)
        if (state + 1) * self._width * self._table.itemsize > MAX_TABLE_BYTES:
            raise GrammarFull(f"the grammar's walk needs more than {state} states")
        if (state + 1) * self._width > len(self._table):
            self._table = np.concatenate((self._table, np.zeros_like(self._table)))
        self._table[state * self._width : (state + 1) * self._width] = _UNKNOWN
        self._cores.append(closure[0])
        self._is_end.append(closure[1])
        self._rows.append(None)
        self._ids[closure] = state
        return state


def _spans(starts: Int32, of: Int64) -> tuple[Int64, Int64]:
    """Every number from `starts[i]` up to before `starts[i + 1]`, for each i of `of`; and how many those are."""
    first = starts[of]
    counts = starts[of + 1] - first
    ends = np.cumsum(counts)
    return np.repeat(first - (ends - counts), counts) + np.arange(int(counts.sum())), counts
