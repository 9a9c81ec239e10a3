"""What became of named blocks: when and for whom they were given up.

The cache's news tell it of what an index removes; explanations ask it why a block was missed. Nobody tells of what is
stored: an obituary means nothing while a block of its name is held.

INVARIANT: the names that were removed last, at most `most` of them, have the obituary of their last removal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from asyncpage.messages import RequestId
from asyncpage.records import record


@record(frozen=True, slots=True)
class Obituary:
    """A named block was evicted in a step, to make room for a request."""

    step: int
    request: RequestId


class Obituaries:
    """The last `most` names that were removed: 100 bytes each."""

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._dead: OrderedDict[bytes, Obituary] = OrderedDict()
        self._latest = Obituary(-1, RequestId(-1))

    def __len__(self) -> int:
        return len(self._dead)

    def removed(self, name: bytes, step: int, request: RequestId) -> None:
        """The block of this name holds something else from step `step` on, for `request`."""
        latest = self._latest
        if latest.step != step or latest.request != request:  # a request evicts many: they share one value
            self._latest = latest = Obituary(step, request)
        dead = self._dead
        if name in dead:
            dead.move_to_end(name)
        dead[name] = latest
        if len(dead) > self._most:
            dead.popitem(last=False)

    def cleared(self) -> None:
        """Everything is forgotten; nobody was evicted for anybody."""
        self._dead.clear()

    def find(self, name: bytes) -> Obituary | None:
        """When the last block of this name was evicted, and for whom."""
        return self._dead.get(name)

    def knows_none(self, names: Iterable[bytes]) -> bool:
        """Whether none of these has an obituary."""
        return self._dead.keys().isdisjoint(names)
