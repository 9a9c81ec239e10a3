"""Slots of the host arena: which block lies in which, who uses it at this moment, and which is given up first.

Part of the tiers' state (`tier.py`). A slot is free, or has a label. Whatever moves between a slot and somewhere else
holds a pin on it. A labelled slot without a pin is idle; idle ones are an LRU that new blocks take their slots from.

INVARIANT: free + idle + pinned = all slots; a slot with a pin is never handed out, and what can be found has a label.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, Protocol

from asyncpage.messages import BlockLabel


class TierListener(Protocol):
    """Hears which blocks can be found outside the device, and which no longer."""

    def arrived(self, label: BlockLabel, medium: Literal["host", "disk"]) -> None: ...

    def left(self, label: BlockLabel, medium: Literal["host", "disk"]) -> None: ...


class HostSlots:
    """Labels, pins and the order of use of `count` slots; those that were never used cost nothing."""

    def __init__(self, count: int) -> None:
        self.listener: TierListener | None = None
        self._count = count
        self._labels: list[BlockLabel | None] = []  # of the slots that were ever used: the first ones
        self._pins: list[int] = []
        self._free: list[int] = []
        self._idle: OrderedDict[int, None] = OrderedDict()  # the longest unused first
        self._places: dict[bytes, int] = {}  # by key, where a block can be read

    def __len__(self) -> int:
        """Blocks that can be read."""
        return len(self._places)

    @property
    def room(self) -> int:
        """How many slots `take` would find."""
        return self._count - len(self._labels) + len(self._free) + len(self._idle)

    def place(self, key: bytes) -> int | None:
        """The slot that a block can be read from."""
        return self._places.get(key)

    def label_of(self, key: bytes) -> BlockLabel | None:
        """What can be read here under this key."""
        slot = self._places.get(key)
        return None if slot is None else self._labels[slot]

    def is_idle(self, key: bytes) -> bool:
        """Whether the block can be read here and might have to make room."""
        return self._places.get(key) in self._idle

    def label(self, slot: int) -> BlockLabel | None:
        """What lies there, or is on its way there."""
        return self._labels[slot]

    def touch(self, key: bytes) -> None:
        """The block, if it can be read here, was of use just now."""
        slot = self._places.get(key)
        if slot is not None and slot in self._idle:
            self._idle.move_to_end(slot)

    def take(self, label: BlockLabel) -> int | None:
        """A slot for a block that is on its way, with one pin; the longest unused one's if none is free."""
        if self._free:
            slot = self._free.pop()
        elif len(self._labels) < self._count:
            slot = len(self._labels)
            self._labels.append(None)
            self._pins.append(0)
        elif self._idle:
            slot, _ = self._idle.popitem(last=False)
            self.unlabel(slot)
        else:
            return None
        self._labels[slot] = label
        self._pins[slot] = 1
        return slot

    def show(self, slot: int) -> None:
        """The block that was on its way there can be read."""
        label = self._labels[slot]
        assert label is not None
        self._places[label.key] = slot
        if self.listener is not None:
            self.listener.arrived(label, "host")

    def pin(self, slot: int) -> None:
        """One more moves between this slot and somewhere else."""
        if not self._pins[slot]:
            del self._idle[slot]
        self._pins[slot] += 1

    def unpin(self, slot: int) -> None:
        """One has moved; without a label nobody wants the slot any more."""
        self._pins[slot] -= 1
        if not self._pins[slot]:
            if self._labels[slot] is None:
                self._free.append(slot)
            else:
                self._idle[slot] = None

    def unlabel(self, slot: int) -> None:
        """What lies there is of no use; the slot is free as soon as it has no pin."""
        label, self._labels[slot] = self._labels[slot], None
        if label is not None and self._places.get(label.key) == slot:
            del self._places[label.key]
            if self.listener is not None:
                self.listener.left(label, "host")

    def clear(self) -> None:
        """Nothing that lies here is of use."""
        for slot in range(len(self._labels)):
            self.unlabel(slot)
        self._free += self._idle
        self._idle.clear()
