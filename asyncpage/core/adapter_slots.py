"""Which adapter has which slot of the executor, and for whom a slot is to become free.

The roster tells it of rows that begin and end, and asks it of those that wait, in their order.

An adapter keeps its slot as long as a row runs with it. Where another waits for one and none is free, the adapter with
the fewest rows takes in nobody who stands behind the one that waits, so that its slot becomes free when its rows have
ended; the others go on as before, and whoever needs no slot, or one that is held, passes those that wait.

INVARIANT: no more adapters run at once than there are slots; for the first in the order who waits for a slot, one is
free or becoming so.
"""

from __future__ import annotations

from collections import OrderedDict

from asyncpage.errors import ProtocolError


class AdapterSlots:
    """Slots 1 to `slots`; 0 stands for no adapter. Adapters are named by their identity, "" for none."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._slot_of: dict[str, int] = {}  # also of those that no row runs with any more
        self._rows: dict[str, int] = {}  # of those that are running
        self._idle: OrderedDict[str, int] = OrderedDict()  # the others' slots, the one used longest ago first
        self._unused = list(range(slots, 0, -1))

    def enter(self, adapter: str) -> int:
        """A row begins. Returns its slot. Errors: `ProtocolError` when there is none."""
        if not adapter:
            return 0
        if adapter not in self._slot_of:
            if self._unused:
                slot = self._unused.pop()
            elif self._idle:
                left, slot = self._idle.popitem(last=False)
                del self._slot_of[left]
            else:
                raise ProtocolError(f"a row needs a slot for its adapter, and all {self.slots} are in use")
            self._slot_of[adapter] = slot
        self._idle.pop(adapter, None)
        self._rows[adapter] = self._rows.get(adapter, 0) + 1
        return self._slot_of[adapter]

    def leave(self, adapter: str) -> None:
        """A row that had entered ends."""
        if adapter:
            self._rows[adapter] -= 1
            if not self._rows[adapter]:
                del self._rows[adapter]
                self._idle[adapter] = self._slot_of[adapter]

    def pick(self) -> Pick:
        """For one walk over those that wait."""
        return Pick(self._rows, self.slots - len(self._rows))


class Pick:
    """Asked of each who waits, in order, whether it may be offered a row; `free`: slots that no row runs with.

    Whatever part of those that it lets through then gets rows, there are slots for them.
    """

    def __init__(self, rows: dict[str, int], free: int) -> None:
        self._rows = rows
        self._free = free
        self._new: set[str] = set()
        self._waiting: set[str] = set()
        self._closed: set[str] = set()

    def lets(self, adapter: str) -> bool:
        """Whether a request of this adapter may be offered a row."""
        if not adapter:
            return True
        if adapter in self._closed or adapter in self._waiting:
            return False
        if adapter in self._rows or adapter in self._new:
            return True
        if self._free:
            self._free -= 1
            self._new.add(adapter)
            return True
        self._waiting.add(adapter)
        open_ones = [one for one in self._rows if one not in self._closed]
        if open_ones:
            self._closed.add(min(open_ones, key=self._rows.__getitem__))
        return False
