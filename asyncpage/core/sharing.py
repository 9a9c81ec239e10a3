"""Sharing in flight: blocks that a running row is about to compute, and the requests that wait for them.

The settlement asks before it lets a candidate in: when the next block it misses is promised by a row that runs, it is
parked, and shares the block instead of computing it again. A parked request holds nothing, so nobody can wait for it.

INVARIANT: every parked request that does not leave is woken, at the latest when the row whose promise it waits for
ends, however it ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpage.messages import RequestId


class Sharing:
    """Promised blocks by name, and who waits for which."""

    def __init__(self) -> None:
        self._promised: dict[bytes, int] = {}
        self._promises: dict[int, list[bytes]] = {}  # a row's, the first to be computed last
        self._waiting: dict[bytes, dict[RequestId, None]] = {}  # by the name that they wait for, in order
        self._parked: dict[RequestId, bytes] = {}
        self._woken: list[RequestId] = []

    def __len__(self) -> int:
        """Requests that are parked."""
        return len(self._parked)

    @property
    def is_promised(self) -> bool:
        """Whether any block is."""
        return bool(self._promises)

    def promise(self, row: int, names: Sequence[bytes]) -> None:
        """A row that has been let in will compute these blocks, in this order. A name is promised once."""
        own = []
        for name in names:
            if name not in self._promised:
                self._promised[name] = row
                own.append(name)
        if own:
            own.reverse()
            self._promises[row] = own

    def park(self, request: RequestId, names: Sequence[bytes], first: int) -> bool:
        """Let `request` wait when `names[first]` is promised: for the last of the run that the same row promises."""
        row = self._promised.get(names[first]) if first < len(names) else None
        if row is None:
            return False
        low, high = first, len(names) - 1
        while low < high:  # a chain's names are promised from the front
            middle = (low + high + 1) // 2
            if self._promised.get(names[middle]) == row:
                low = middle
            else:
                high = middle - 1
        self._waiting.setdefault(names[low], {})[request] = None
        self._parked[request] = names[low]
        return True

    def left(self, request: RequestId) -> None:
        """The request is over. One that is not parked is let be."""
        name = self._parked.pop(request, None)
        if name is not None:
            waiting = self._waiting[name]
            del waiting[request]
            if not waiting:
                del self._waiting[name]

    def kept(self, row: int, name: bytes) -> None:
        """The block is computed and can be found."""
        promises = self._promises.get(row)
        if promises and promises[-1] == name:
            self._resolve(promises.pop())
            if not promises:
                del self._promises[row]

    def broken(self, row: int) -> None:
        """The row has ended or lost its blocks: what it had promised will not come from it."""
        for name in reversed(self._promises.pop(row, ())):
            self._resolve(name)

    def clear(self) -> None:
        """No row will keep its promises: none exists any more, or what they compute may not be shared."""
        for row in list(self._promises):
            self.broken(row)

    def woken(self) -> tuple[RequestId, ...]:
        """Requests that need wait no longer, told once."""
        woken = tuple(self._woken)
        self._woken.clear()
        return woken

    def _resolve(self, name: bytes) -> None:
        del self._promised[name]
        if self._waiting and (waiting := self._waiting.pop(name, None)):
            for request in waiting:
                del self._parked[request]
            self._woken += waiting
