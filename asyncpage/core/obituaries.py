"""What became of named blocks: which are held, and when and for whom the others were given up.

The cache's news tell it of what an index stores and removes; explanations ask it why a block was missed.

INVARIANT: a name is held or has an obituary, never both; there are at most `most` obituaries, the oldest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from asyncpage.messages import RequestId
from asyncpage.records import record


@record(frozen=True, slots=True)
class Obituary:
    """A named block was evicted in a step, to make room for a request."""

    step: int
    request: RequestId


class Obituaries:
    """The names that are held, and the last `most` that were removed: 100 bytes each."""

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._held: set[bytes] = set()
        self._dead: OrderedDict[bytes, Obituary] = OrderedDict()
        self._latest = Obituary(-1, RequestId(-1))

    def __len__(self) -> int:
        return len(self._dead)

    def stored(self, name: bytes) -> None:
        """A block of this name can be found from now on."""
        self._held.add(name)
        self._dead.pop(name, None)

    def removed(self, name: bytes, step: int, request: RequestId) -> None:
        """The block of this name holds something else from step `step` on, for `request`."""
        latest = self._latest
        if latest.step != step or latest.request != request:  # a request evicts many: they share one value
            self._latest = latest = Obituary(step, request)
        dead = self._dead
        self._held.discard(name)
        dead[name] = latest
        if len(dead) > self._most:
            dead.popitem(last=False)

    def cleared(self) -> None:
        """Everything is forgotten; nobody was evicted for anybody."""
        self._held.clear()
        self._dead.clear()

    def holds(self, name: bytes) -> bool:
        """Whether a block of this name can be found."""
        return name in self._held

    def find(self, name: bytes) -> Obituary | None:
        """When the block of this name was last evicted, and for whom."""
        return self._dead.get(name)

    def fates(self, names: Sequence[bytes]) -> list[Obituary | Literal["held"] | None]:
        """Of each name: its obituary, "held" if the index holds a block of it, None if nothing is known."""
        if self._held.isdisjoint(names):
            return [*map(self._dead.get, names)]
        return ["held" if name in self._held else self._dead.get(name) for name in names]
