"""The pool of KV blocks: who holds a block, and in which order free ones are handed out.

Used by the settlement only. Blocks are numbers from 1; block 0 is never handed out (padding points at it).
Free blocks without a name wait on a stack and go first; free blocks that a later prompt could still use wait in an
ordered dictionary, least recently freed first, and go last. That is the order of one intrusive list, which took 0.65
us to hand out and take back a blank block where this takes 0.57: taking many from a stack is a slice.

INVARIANT: blank + cached + referenced = total, at every moment; a block with a name never changes its contents.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.tier import Tier

MOST_SHOWN = 255


class BlockPool:
    """Reference counts over `blocks` - 1 usable blocks, with named free blocks kept for reuse.

    `tier`: is told of named blocks that become free and of those that are given up.
    """

    def __init__(self, blocks: int, index: PrefixIndex, tier: Tier | None = None) -> None:
        self._index = index
        self._tier = tier
        self._blocks = blocks
        self.total = blocks - 1
        self.evicted = 0
        """Cached blocks that were given up to hold something else, so far."""
        self.reset()

    def reset(self) -> None:
        """Every block is free and blank: the device that held them is gone."""
        self._index.clear()
        self._references = [0] * self._blocks
        self._references[0] = 1  # block 0 is never free
        self._blank = list(range(self._blocks - 1, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks that can be handed out now, blank or cached."""
        return len(self._blank) + len(self._cached)

    @property
    def blank(self) -> int:
        """Free blocks that hold nothing of use; they go first."""
        return len(self._blank)

    @property
    def cached(self) -> int:
        """Free blocks that still hold a named beginning of some prompt."""
        return len(self._cached)

    def references(self, block: int) -> int:
        """How many rows hold this block."""
        return self._references[block]

    def look(self, first: int, last: int) -> tuple[bytes, bytes]:
        """Of blocks `first` .. `last` - 1, a byte each: how many rows hold it, 255 for more; 1 where it has a name.

        0.1 us a block: as lists that become columns it took two and a half times that.
        """
        counts = self._references[first:last]
        try:
            references = bytes(counts)
        except ValueError:
            references = bytes([min(count, MOST_SHOWN) for count in counts])
        return references, bytes(map(self._index.holds, range(first, last)))

    def count_free(self, blocks: Sequence[int]) -> int:
        """How many of these nobody holds, so that sharing them would take them out of the free blocks."""
        references = self._references
        return [references[block] for block in blocks].count(0)

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks, each referenced once; the caller has checked `free`."""
        if count == 0:
            return []
        blank = self._blank
        taken = blank[-count:]
        if taken:
            del blank[-count:]
            taken.reverse()
        while len(taken) < count:
            block, _ = self._cached.popitem(last=False)
            self._index.forget(block)
            self.evicted += 1
            if self._tier is not None:
                self._tier.evicted(block)
            taken.append(block)
        references = self._references
        for block in taken:
            references[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each block; a cached one leaves the free blocks. Block 0 is skipped."""
        references, cached = self._references, self._cached
        for block in blocks:
            if block:
                if not references[block]:
                    del cached[block]
                references[block] += 1

    def drop(self, blocks: Sequence[int]) -> None:
        """Give one reference back for each block, in this order: the first is reused first among its kind."""
        blank = []
        references, holds = self._references, self._index.holds
        for block in blocks:
            if block:
                left = references[block] - 1
                references[block] = left
                if left == 0:
                    if holds(block):
                        self._cached[block] = None
                        if self._tier is not None:
                            self._tier.freed(block)
                    else:
                        blank.append(block)
        blank.reverse()
        self._blank += blank

    def forget(self, blocks: Iterable[int]) -> None:
        """These, of which nobody holds any, do not hold what they are named after; the end of a branch comes first."""
        for block in blocks:
            if block in self._cached:
                del self._cached[block]
                self._index.forget(block)
                self._blank.append(block)

    def forget_cached(self) -> int:
        """Every free block becomes blank, because no prompt may find it any more; how many were not."""
        forgotten = list(self._cached)
        self._cached.clear()
        self._blank += forgotten
        return len(forgotten)

    def referenced(self) -> int:
        """Blocks that somebody holds, counted one by one (for the ledger's check)."""
        return sum(1 for count in self._references[1:] if count)
