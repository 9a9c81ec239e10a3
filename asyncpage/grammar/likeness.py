"""Which states of a network are alike: no text up to some length can tell them apart.

The automaton asks once, for more bytes than its longest token has: a mask of one state is then the mask of all that are
like it. Every place in a text of at most 500 characters is like the next one, until few characters are left.

Moore's partition refinement, one round a byte, with a hash for each block: what a state's ways out are and where they
lead, as far as the rounds before have seen. Jumps are followed first, so that every step of a round takes a byte; a
call takes at least one, since those of nothing are jumps.

INVARIANT: states of one colour allow the same texts of at most `depth` bytes, and come to the end of their rule after
the same of them, but for a collision of 64-bit hashes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncpage.grammar.network import Network

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]

MOST_WAYS = 500_000  # of jumps followed, and of edges behind them: a round takes some milliseconds there
MOST_TURNS = 64  # of looking for rules that match nothing, and of following jumps
_LOOK = 8  # rounds between two looks at whether any state was told from another since

_BITS = 18  # MAX_STATES is below 2 ** 18
_STATE = np.int64((1 << _BITS) - 1)


def colours(network: Network, depth: int) -> UInt64 | None:
    """[states] of each state; None for a network that it would take too long to compare."""
    jumps = _followed(network)
    if jumps is None:
        return None
    sources, targets = jumps >> _BITS, jumps & _STATE
    edges = _ways(
        sources, targets, network.edges[:, 0], network.edges[:, 1] * 256 + network.edges[:, 2], network.edges[:, 3]
    )
    calls = _ways(sources, targets, network.calls[:, 0], 65536 + network.calls[:, 1], network.calls[:, 2])
    if edges is None or calls is None:
        return None
    is_final = np.zeros(network.states, dtype=np.bool_)
    is_final[network.finals] = True
    ends = np.zeros(network.states, dtype=np.uint64)
    reaches = is_final[targets]
    np.add.at(ends, sources[reaches], _mixed(targets[reaches].astype(np.uint64)))
    froms, labels, tos = (np.concatenate(columns) for columns in zip(edges, calls, strict=True))
    order = np.argsort(froms, kind="stable")
    froms, marks, tos = froms[order], _mixed(labels[order].astype(np.uint64)), tos[order]
    first = np.flatnonzero(np.diff(froms, prepend=-1))
    leaves = froms[first]
    found: UInt64 = np.zeros(network.states, dtype=np.uint64)
    blocks = 1
    for round_ in range(depth):
        before, found = found, ends.copy()
        if len(first):
            found[leaves] += np.add.reduceat(_mixed(marks + before[tos]), first)
        found = _mixed(found)
        if round_ % _LOOK == 0:
            now = len(np.unique(found))
            if now == blocks and round_:
                break
            blocks = now
    return found


def _followed(network: Network) -> Int64 | None:
    """(source << _BITS | target) of every way without a byte, each state's to itself among them."""
    states = np.arange(network.states, dtype=np.int64)
    jumps = network.jumps.astype(np.int64)
    calls = network.calls.astype(np.int64)
    is_empty = np.zeros(len(network.starts), dtype=np.bool_)  # rules that match nothing, as far as known
    for _ in range(MOST_TURNS):
        empty = calls[is_empty[calls[:, 1]]][:, (0, 2)]
        pairs = _closed(np.concatenate((jumps, empty)), states)
        if pairs is None:
            return None
        wanted = network.starts.astype(np.int64) << _BITS | network.finals
        now = np.isin(wanted, pairs)
        if (now == is_empty).all():
            return pairs
        is_empty = now
    return None


def _closed(jumps: Int64, states: Int64) -> Int64 | None:
    """Pairs of states that any number of jumps join."""
    order = np.argsort(jumps[:, 0], kind="stable")
    targets = jumps[order, 1]
    starts = np.searchsorted(jumps[order, 0], np.arange(len(states) + 1))
    pairs = states << _BITS | states
    new = pairs
    for _ in range(MOST_TURNS):
        sources, at = new >> _BITS, new & _STATE
        counts = starts[at + 1] - starts[at]
        total = int(counts.sum())
        if not total:
            return pairs
        if len(pairs) + total > MOST_WAYS:
            return None
        places = np.repeat(starts[at] - (np.cumsum(counts) - counts), counts) + np.arange(total)
        reached = np.unique(np.repeat(sources, counts) << _BITS | targets[places])
        new = reached[~np.isin(reached, pairs)]
        if not len(new):
            return pairs
        pairs = np.concatenate((pairs, new))
    return None


def _ways(
    sources: Int64, targets: Int64, froms: NDArray[np.integer], labels: NDArray[np.integer], tos: NDArray[np.integer]
) -> tuple[Int64, Int64, Int64] | None:
    """(state, label, target) of every edge or call that a state has or jumps to, each once."""
    order = np.argsort(froms, kind="stable")
    starts = np.searchsorted(froms[order], np.arange(int(targets.max(initial=0)) + 2))
    counts = starts[targets + 1] - starts[targets]
    total = int(counts.sum())
    if total > MOST_WAYS:
        return None
    places = order[np.repeat(starts[targets] - (np.cumsum(counts) - counts), counts) + np.arange(total)]
    rows = np.stack((np.repeat(sources, counts), labels[places], tos[places]), axis=1).astype(np.int64)
    rows = rows[np.lexsort(rows.T)]
    is_new = np.ones(len(rows), dtype=np.bool_)
    is_new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    columns = rows[is_new].T
    return columns[0], columns[1], columns[2]


def _mixed(values: UInt64) -> UInt64:
    """The finaliser of SplitMix64 (Steele, Lea, Flood, 2014): every bit of a value changes half of the result's."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
