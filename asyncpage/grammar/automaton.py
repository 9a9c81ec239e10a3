"""A grammar at work: which tokens may come next, and where each leads.

The built-in backend keeps one for every grammar that is followed (`builtin.py`). States are sets of the network's
configurations, made when they are first reached. States that no token can tell apart are of one kind (`likeness.py`),
and have one mask: a walk of the lexicon's trie over a table of kinds by byte classes, level by level, for all tokens at
once.

INVARIANT: a token is in the mask of a state exactly when its bytes can be walked from there; states, stacks and
closures are bounded, and what is past a bound raises `GrammarLimit`.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count

import numpy as np
from numpy.typing import NDArray

from asyncpage.grammar.backend import Bits, GrammarLimit
from asyncpage.grammar.configuration import Configurations, GrammarFull
from asyncpage.grammar.lexicon import Lexicon
from asyncpage.grammar.likeness import colours
from asyncpage.grammar.masks import MaskCache
from asyncpage.grammar.network import Network

Int64 = NDArray[np.int64]

DEAD = -1
MAX_BYTES = 64 << 20  # of an automaton's states and kinds
MAX_WORK = 200_000  # configurations that one mask may look at: 0.2 to 0.4 s; 300 random patterns need 32,000
STATE_WORK = 20  # what a state or kind takes beside its configurations, in what one of these takes
STATE_BYTES = 500  # what a state takes beside its kind and its configurations, about
CONFIGURATION_BYTES = 16  # its place in tuples; its number is mostly shared
KEPT_BYTES = 150  # of each that `Configurations` keeps

_NUMBERS = count()

_DEAD, _UNKNOWN = 0, -1
_FEW = 4  # a level of which less than a quarter is reached is walked by its reached nodes alone


class Automaton:
    """`mask_cache`: shared with others, so that all masks together are bounded; its own without one."""

    def __init__(self, network: Network, lexicon: Lexicon, mask_cache: MaskCache | None = None) -> None:
        """Errors: `GrammarLimit`."""
        self._number = next(_NUMBERS)  # a mask is kept under it: under this object it would keep that alive
        self._configurations = Configurations(network)
        self._lexicon = lexicon
        self._masks = MaskCache() if mask_cache is None else mask_cache
        self._width = self._configurations.class_count
        self._class_of = self._configurations.classes.tolist()
        self._node_classes = self._configurations.classes[lexicon.bytes]
        # By state: configurations, whether the text may end there, where byte classes lead as far as known, kind.
        self._cores: list[tuple[int, ...]] = [()]
        self._is_end: list[bool] = [False]
        self._rows: list[dict[int, int]] = [{}]
        self._kinds: list[int] = [_DEAD]
        self._states: dict[tuple[tuple[int, ...], bool], int] = {((), False): _DEAD}
        self._kernels: dict[tuple[int, ...], int] = {(): _DEAD}
        self._held = 0  # configurations in states and kernels
        # By kind: one of its states, and a row of the table once it was asked for.
        found = colours(network, lexicon.longest + 1)  # one more: whether anything may follow
        self._colours = None if found is None else found.tolist()
        self._members: list[int] = [_DEAD]
        self._kind_ids: dict[Hashable, int] = {}
        self._left = MAX_WORK  # of what is under way
        self._table: Int64 = np.zeros(64 * self._width, dtype=np.int64)
        self.start = self._state_of((self._configurations.start,)) or DEAD

    @property
    def states(self) -> int:
        """How many there are so far, with the dead one."""
        return len(self._cores)

    @property
    def size_bytes(self) -> int:
        """What states, kinds and configurations take, about."""
        states = STATE_BYTES * len(self._cores) + CONFIGURATION_BYTES * self._held
        return states + 8 * self._width * len(self._members) + KEPT_BYTES * self._configurations.kept

    def advance(self, state: int, token: int) -> int:
        """Where a token leads, `DEAD` when it is not allowed. Errors: `GrammarLimit`."""
        data = self._lexicon.token_bytes[token] if 0 <= token < len(self._lexicon.token_bytes) else b""
        return self.walk(state, data) if data else DEAD

    def walk(self, state: int, data: bytes) -> int:
        """Where bytes lead, `DEAD` when nowhere. Errors: `GrammarLimit`."""
        if state == DEAD:
            return DEAD
        rows, class_of = self._rows, self._class_of
        self._left = MAX_WORK
        for byte in data:
            byte_class = class_of[byte]
            reached = rows[state].get(byte_class)
            if reached is None:
                kernel = self._configurations.move(self._cores[state], byte_class)
                reached = rows[state][byte_class] = self._state_of(kernel)
            if reached == _DEAD:
                return DEAD
            state = reached
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
        kind = self._kind_of(state)
        name = (self._number, kind)
        known = self._masks.get(name)
        if known is None:
            known = self._walk_all(kind)
            self._masks.put(name, known)
        return known

    # --- the walk -----------------------------------------------------------------------------------------------------

    def _walk_all(self, kind: int) -> Bits:
        """All tokens at once: the kind of state that each node of the trie is reached in, parents first."""
        lexicon, classes = self._lexicon, self._node_classes
        children, parents = lexicon.children, lexicon.parents
        reached = np.zeros(len(lexicon), dtype=np.int64)  # the kind at each node, 0 where none is
        reached[0] = kind
        self._left = MAX_WORK
        before, total = 0, 1  # the first node of the level above; how many nodes are reached in all
        for first, end in zip(lexicon.levels, lexicon.levels[1:], strict=False):
            alive = int(np.count_nonzero(reached[before:first]))
            if not alive:
                end = first
                break
            if alive * _FEW >= first - before:
                self._step(reached[parents[first:end]], classes[first:end], reached[first:end])
            else:
                above = before + np.flatnonzero(reached[before:first])
                nodes, counts = _spans(children, above)
                kinds = np.empty(len(nodes), dtype=np.int64)
                self._step(np.repeat(reached[above], counts), classes[nodes], kinds)
                reached[nodes] = kinds
            before, total = first, total + alive
        else:
            self._walk_deep(reached)
            end = len(lexicon)
        reached[0] = 0  # whatever it is: no token is empty
        allowed = np.zeros(lexicon.vocab_size, dtype=np.bool_)
        if total * _FEW < len(lexicon):
            allowed[lexicon.tokens[_spans(lexicon.places, np.flatnonzero(reached[:end]))[0]]] = True
        else:
            np.not_equal(reached[lexicon.nodes], 0, out=allowed)
        bits = np.packbits(allowed, bitorder="little")
        bits.flags.writeable = False
        return bits

    def _step(self, kinds: Int64, classes: Int64, out: Int64) -> None:
        """Where each of `kinds`, which is lost, goes with the class beside it; what is not known yet is found out."""
        kinds *= self._width
        kinds += classes
        self._table.take(kinds, out=out, mode="clip")  # they are in range; "raise" would go by a buffer
        if len(out) and int(out.min()) == _UNKNOWN:
            is_asked = np.zeros(len(self._members), dtype=np.bool_)
            is_asked[kinds[out == _UNKNOWN] // self._width] = True
            for kind in np.flatnonzero(is_asked).tolist():
                self._fill(kind)
            self._table.take(kinds, out=out, mode="clip")

    def _walk_deep(self, reached: Int64) -> None:
        """The levels with so few nodes that one at a time is faster: the ends of the longest tokens."""
        base, class_of = self._lexicon.deep_base, self._class_of
        kinds = reached[base:].tolist()
        rows: dict[int, list[int]] = {}
        for node, parent, byte in self._lexicon.deep:
            kind = kinds[parent]
            if kind:
                row = rows.get(kind)
                if row is None:
                    row = rows[kind] = self._row(kind).tolist()
                kinds[node] = row[class_of[byte]]
        reached[base:] = kinds

    def _row(self, kind: int) -> Int64:
        """Where each byte class leads from a kind."""
        row = slice(kind * self._width, (kind + 1) * self._width)
        if self._table[row.start] == _UNKNOWN:
            self._fill(kind)
        return self._table[row]

    # --- states and kinds ---------------------------------------------------------------------------------------------

    def _fill(self, kind: int) -> None:
        """Find out where every byte class leads from a kind. Errors: `GrammarLimit`."""
        kinds = [_DEAD] * self._width
        core = self._cores[self._members[kind]]
        self._work(len(core))
        for low, high, kernel in self._configurations.moves(core):
            kinds[low : high + 1] = [self._kind_of(self._state_of(kernel))] * (high + 1 - low)
        self._table[kind * self._width : (kind + 1) * self._width] = kinds

    def _state_of(self, kernel: tuple[int, ...]) -> int:
        known = self._kernels.get(kernel)
        if known is not None:
            return known
        self._check_room()
        closure = self._configurations.close(kernel)
        self._work(len(kernel) + len(closure[0]))
        self._held += len(kernel)
        state = self._states.get(closure)
        if state is None:
            self._held += len(closure[0])
            state = self._states[closure] = len(self._cores)
            self._cores.append(closure[0])
            self._is_end.append(closure[1])
            self._rows.append({})
            self._kinds.append(_UNKNOWN)
        self._kernels[kernel] = state
        return state

    def _kind_of(self, state: int) -> int:
        kind = self._kinds[state]
        if kind == _UNKNOWN:
            name: Hashable = state
            if self._colours is not None:
                name = self._configurations.likeness(self._cores[state], self._colours)
            known = self._kind_ids.get(name)
            kind = self._add_kind(name, state) if known is None else known
            self._kinds[state] = kind
        return kind

    def _add_kind(self, name: Hashable, member: int) -> int:
        self._check_room()
        kind = len(self._members)
        if (kind + 1) * self._width > len(self._table):
            self._table = np.concatenate((self._table, np.zeros_like(self._table)))
        self._table[kind * self._width : (kind + 1) * self._width] = _UNKNOWN
        self._members.append(member)
        self._kind_ids[name] = kind
        return kind

    def _work(self, configurations: int) -> None:
        self._left -= STATE_WORK + configurations
        if self._left < 0:
            raise GrammarLimit("the grammar has too many ways to go on at one place; make it smaller")

    def _check_room(self) -> None:
        if self.size_bytes > MAX_BYTES:
            raise GrammarFull(f"the grammar's walk needs more than {self.states} states")


def _spans(starts: Int64, of: Int64) -> tuple[Int64, Int64]:
    """Every number from `starts[i]` up to before `starts[i + 1]`, for each i of `of`; and how many those are."""
    first = starts[of]
    counts = starts[of + 1] - first
    ends = np.cumsum(counts)
    return np.repeat(first - (ends - counts), counts) + np.arange(int(counts.sum())), counts
