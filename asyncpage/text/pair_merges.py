"""Merging neighbours of one piece of text, by ids: what every tokenizer of pairs comes down to.

The encoders give it the symbols that a piece begins with. Short ones are merged by scanning a short list, long ones by
a heap, in portions.

INVARIANT: both ways give what the definition gives: while some neighbours can be merged, merge the most urgent
pair, the leftmost of equals.

Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units", 2016.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import pairwise

SHORT_SYMBOLS = 48
"""Up to here scanning for the minimum is faster than a heap (measured)."""

PORTION_STEPS = 128  # of merging a long piece, about 0.15 ms
PORTION_SYMBOLS = 4096  # of copying, about as long

_NEVER = 1 << 62
_PLACE_BITS = 32
_PLACE_MASK = (1 << _PLACE_BITS) - 1

RankedPair = tuple[int, int, int, int]
"""Rank, the smallest is the most urgent; left id, right id, merged id."""


class PairMerges:
    """The merges of one vocabulary.

    `_merges` maps a pair of ids, packed into one integer, to its rank and the merged id, packed likewise: the
    smallest value is the most urgent merge, and one dictionary look-up answers both questions.
    """

    def __init__(self, vocab_size: int, pairs: Iterable[RankedPair], *, has_ties: bool = False) -> None:
        """All ids are below `vocab_size`. `has_ties`: pairs of one rank may make different tokens."""
        self._shift = shift = max(vocab_size, 2).bit_length()
        self._mask = (1 << shift) - 1
        self._merges = {left << shift | right: rank << shift | merged for rank, left, right, merged in pairs}
        self._has_ties = has_ties

    def merge(self, symbols: list[int]) -> tuple[int, ...]:
        """What becomes of a few symbols; quadratic in their number, with a tiny constant."""
        find, shift, mask = self._merges.get, self._shift, self._mask
        values = [find(left << shift | right, _NEVER) for left, right in pairwise(symbols)]
        while values:
            value = min(values)
            if value == _NEVER:
                break
            if self._has_ties:  # the smallest number is that of the smallest token, which need not be the leftmost
                value = next(other for other in values if other >> shift == value >> shift)
            at = values.index(value)
            merged = value & mask
            symbols[at : at + 2] = (merged,)
            del values[at]
            if at < len(values):
                values[at] = find(merged << shift | symbols[at + 1], _NEVER)
            if at:
                values[at - 1] = find(symbols[at - 1] << shift | merged, _NEVER)
        return tuple(symbols)

    def merge_in_portions(self, symbols: array[int], ids: list[int]) -> Iterator[None]:
        """Append what becomes of `symbols` to `ids`, yielding between portions of work; n log n for n of them.

        The symbols form a linked list; a heap holds candidate merges, of which stale ones are skipped. All of it is
        plain numbers, in arrays where it can be: objects by the hundred thousand would make the collector stop the
        loop for tens of milliseconds.
        """
        find, shift, mask = self._merges.get, self._shift, self._mask
        end = len(symbols)
        after, before = array("i"), array("i")
        heap: list[int] = []  # rank, place and merged id, packed in this order
        for at in range(end):
            after.append(at + 1)
            before.append(at - 1)
            value = find(symbols[at - 1] << shift | symbols[at]) if at else None
            if value is not None:
                heappush(heap, ((value >> shift) << _PLACE_BITS | at - 1) << shift | value & mask)
            if not at % PORTION_STEPS:
                yield
        steps = 0
        while heap:
            steps += 1
            if not steps % PORTION_STEPS:
                yield
            entry = heappop(heap)
            merged, at = entry & mask, entry >> shift & _PLACE_MASK
            value = entry >> shift >> _PLACE_BITS << shift | merged
            right = after[at]
            # A symbol that was swallowed is -1, which makes the pair a key that no merge has.
            if right == end or symbols[at] < 0 or find(symbols[at] << shift | symbols[right]) != value:
                continue
            symbols[at], symbols[right] = merged, -1
            after[at] = beyond = after[right]
            if beyond < end:
                before[beyond] = at
                new = find(merged << shift | symbols[beyond])
                if new is not None:
                    heappush(heap, ((new >> shift) << _PLACE_BITS | at) << shift | new & mask)
            left = before[at]
            if left >= 0:
                new = find(symbols[left] << shift | merged)
                if new is not None:
                    heappush(heap, ((new >> shift) << _PLACE_BITS | left) << shift | new & mask)
        for start in range(0, end, PORTION_SYMBOLS):
            ids += [id for id in symbols[start : start + PORTION_SYMBOLS] if id >= 0]
            yield
