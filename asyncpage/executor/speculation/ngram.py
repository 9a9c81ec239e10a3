"""Drafts from the row's own text: what followed the last time that its newest tokens came in this order.

Prompt lookup (Saxena 2023). Each row has an index that grows with it: the last place of every run of `shortest` tokens,
and from each place to the one before it with the same run. Of the places that the newest run leads to, the one whose
text before it agrees with the row's end for longest is followed, the latest of equals. Where the place is near the end,
what it is followed by goes round: a text that repeats itself is drafted as far as asked.

The runner asks it before every forward pass; it asks nobody.

INVARIANT: a look at a row costs as much as `_MOST_PLACES` places, however long the row is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import torch

from asyncpage.executor.attention import PagedAttention
from asyncpage.executor.batch import PersistentBatch
from asyncpage.executor.speculation.proposer import Drafts, no_drafts
from asyncpage.messages import Int32, NewRow

_MOST_PLACES = 64  # the latest ones; a longer chain is of a run that says little
_MOST_INDEXED = 32_768  # tokens of a prompt, its last: a dictionary entry for each is a few megabytes
_FACTOR = 0x9E3779B97F4A7C15 - 2**64  # as an int64: neighbouring ids fall far apart


class NgramProposer:
    """`shortest`, `longest`: how many tokens must agree, and how many are looked at."""

    caches: Sequence[PagedAttention] = ()

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest, self._longest = shortest, longest
        self._indexes: dict[int, _Index] = {}

    def clear(self) -> None:
        self._indexes.clear()

    def add(self, new: NewRow) -> None:
        """Nothing is indexed before drafts are asked for."""
        self._indexes.pop(new.row, None)

    def remove(self, row: int) -> None:
        self._indexes.pop(row, None)

    def propose(self, batch: PersistentBatch, rows: Int32, counts: Int32, asked: Int32) -> Drafts:
        if not asked.any():
            return no_drafts(len(rows))
        found = np.zeros(len(rows), dtype=np.int32)
        tokens: list[Int32] = []
        for at in np.flatnonzero(asked).tolist():
            row = int(rows[at])
            index = self._indexes.get(row)
            if index is None:
                index = self._indexes[row] = _Index(self._shortest, self._longest)
            own = index.continuation(batch.known_of(row), int(asked[at]))
            if len(own):
                found[at] = len(own)
                tokens.append(own)
        return Drafts(found, np.concatenate(tokens)) if tokens else no_drafts(len(rows))

    def observe(
        self, batch: PersistentBatch, rows: Int32, begins: Int32, starts: Int32, hidden_TE: torch.Tensor
    ) -> None:
        """The tokens alone tell it everything."""


class _Index:
    """Of one row. A place is the number of tokens up to the end of a run; the row's own end is not in it.

    `_last`: the last place of a run by its key; `_before`: from place `_start` on, the place before it with the same
    key, 0 for none. Different runs may share a key, so agreement is always looked at.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest, self._longest = shortest, longest
        self._last: dict[int, int] = {}
        self._before: array[int] = array("i")
        self._start = self._next = 0

    def continuation(self, tokens: Int32, most: int) -> Int32:
        """What could follow `tokens`, up to `most`; empty where nothing of it was there before."""
        known = len(tokens)
        if known <= self._shortest:
            return tokens[:0]
        keys = self._extend(tokens)
        places: list[int] = []
        place = self._last.get(keys, 0)
        while place and len(places) < _MOST_PLACES:
            places.append(place)
            place = self._before[place - self._start]
        if not places:
            return tokens[:0]
        width = min(self._longest, known)
        look = np.array(places)[:, None] - np.arange(1, width + 1)
        agrees = (tokens[look] == tokens[known - np.arange(1, width + 1)]) & (look >= 0)
        lengths = np.logical_and.accumulate(agrees, axis=1).sum(axis=1)
        best = int(lengths.argmax())  # the first of equals, and the latest come first
        if lengths[best] < self._shortest:
            return tokens[:0]
        place = places[best]
        return tokens[place + np.arange(most) % (known - place)]

    def _extend(self, tokens: Int32) -> int:
        """Bring the index up to the row's end; returns the key of the run at the end."""
        known, n = len(tokens), self._shortest
        if not self._next:
            self._start = max(0, known - _MOST_INDEXED) + n
            self._next = self._start
            if self._start < known:
                self._build(tokens)
        keys = self._keys(tokens[self._next - n :]).tolist()
        for place, key in zip(range(self._next, known), keys, strict=False):
            self._before.append(self._last.get(key, 0))
            self._last[key] = place
        self._next = known
        return int(keys[-1])

    def _build(self, tokens: Int32) -> None:
        """Index a row at once, without its end: as one at a time, in a twentieth of the time."""
        keys = self._keys(tokens[self._start - self._shortest : -1])
        order = np.argsort(keys, kind="stable")
        sorted_keys = keys[order]
        is_again = np.concatenate(([False], sorted_keys[1:] == sorted_keys[:-1]))
        before = np.zeros(len(keys), dtype=np.int32)
        again = np.flatnonzero(is_again)
        before[order[again]] = order[again - 1] + self._start
        is_last = np.concatenate((~is_again[1:], [True]))
        self._last = dict(zip(sorted_keys[is_last].tolist(), (order[is_last] + self._start).tolist(), strict=True))
        self._before.frombytes(before.tobytes())
        self._next = self._start + len(keys)

    def _keys(self, tokens: Int32) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """A number for each run of `shortest` tokens, by where it ends."""
        wide = tokens.astype(np.int64)
        n = self._shortest
        keys = wide[: len(wide) - n + 1].copy()
        for place in range(1, n):
            keys *= _FACTOR
            keys += wide[place : len(wide) - n + 1 + place]
        return keys
