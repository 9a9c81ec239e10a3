"""A vocabulary as a byte trie in columns, level by level: what a mask is walked over.

The built-in backend makes one of the token bytes that the executor was told; automata walk it (`automaton.py`).

INVARIANT: nodes are numbered level by level and within a level in the order of their bytes, so a node's children are
neighbours and come after every node of its own level.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

UInt8 = NDArray[np.uint8]
Int64 = NDArray[np.int64]  # all columns are indices into others, which numpy wants as wide as this

DEEP_NODES = 64
"""Levels from the first on after which none has this many nodes are deep: few tokens have more than 20 bytes, and a
column of a few nodes takes as long as one of a thousand."""


class Lexicon:
    """The tokens' bytes, and the trie of all their beginnings. Node 0 is the root, the empty beginning.

    `token_bytes`: by id; `longest`: bytes of the longest. `vocab_size`: ids are below it, more than there are texts
    where a model's head is wider. `levels` [L + 1]: the first node of each broad level below the root, and the end of
    the last. `deep`: (node, parent, byte) of each node behind them, both counted from `deep_base`, the first node of
    the last broad level. `parents`, `bytes` [N]: of each node, the root's are 0. `children` [N + 1]: the first child
    of each node; its children end where the next node's begin. `nodes` [T]: the node of each token, 0 for one without
    bytes, which no grammar allows. `tokens` [T]: ids in the order of their nodes, those of node n at `places[n]` up to
    `places[n + 1]`.
    """

    def __init__(self, token_bytes: Sequence[bytes], vocab_size: int | None = None) -> None:
        self.token_bytes: Sequence[bytes] = tuple(token_bytes)
        self.vocab_size = max(len(self.token_bytes), vocab_size or 0)
        order = sorted(filter(self.token_bytes.__getitem__, range(len(token_bytes))), key=self.token_bytes.__getitem__)
        in_order = [self.token_bytes[id] for id in order]
        flat = np.frombuffer(b"".join(in_order), dtype=np.uint8)
        lengths = np.array(list(map(len, in_order)), dtype=np.int64)
        self.longest = int(lengths.max(initial=0))
        starts = np.cumsum(lengths) - lengths
        alive = np.arange(len(order))  # tokens that go on below the present level
        at = np.zeros(len(order), dtype=np.int64)  # the node that each of them has come to
        nodes = np.zeros(self.vocab_size, dtype=np.int64)
        parents, bytes_, levels = [np.zeros(1, dtype=np.int64)], [np.zeros(1, dtype=np.uint8)], [1]
        ids = np.array(order, dtype=np.int64)
        depth = 0
        while len(alive):
            above = at[alive]
            byte = flat[starts[alive] + depth]
            is_new = np.ones(len(alive), dtype=np.bool_)
            is_new[1:] = (above[1:] != above[:-1]) | (byte[1:] != byte[:-1])
            at[alive] = levels[-1] + np.cumsum(is_new) - 1
            parents.append(above[is_new])
            bytes_.append(byte[is_new])
            levels.append(levels[-1] + int(is_new.sum()))
            depth += 1
            is_whole = lengths[alive] == depth
            whole = alive[is_whole]
            nodes[ids[whole]] = at[whole]
            alive = alive[~is_whole]
        sizes = np.diff(levels)
        broad = 1 + int(np.flatnonzero(sizes >= DEEP_NODES)[-1]) if (sizes >= DEEP_NODES).any() else 0
        self.levels = tuple(levels[: broad + 1])
        self.parents: Int64 = np.concatenate(parents)
        self.bytes: UInt8 = np.concatenate(bytes_)
        size = levels[-1]
        counts = np.bincount(self.parents[1:], minlength=size)
        self.children: Int64 = np.concatenate(([1], 1 + np.cumsum(counts)))
        self.deep_base = self.levels[-2] if broad else 0
        deep = np.arange(self.levels[-1], size)
        columns = (deep - self.deep_base, self.parents[deep] - self.deep_base, self.bytes[deep])
        self.deep = tuple(zip(*(column.tolist() for column in columns), strict=True))
        self.nodes: Int64 = nodes
        self.tokens: Int64 = np.argsort(nodes, kind="stable")
        self.places: Int64 = np.concatenate(([0], np.cumsum(np.bincount(nodes, minlength=size))))

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self.parents)

    @property
    def mask_bytes(self) -> int:
        """Bytes of a mask: a bit a token."""
        return (self.vocab_size + 7) // 8
