"""Copies KV blocks between the device's pool and slots of the host arena.

The runner calls it once a step at most. A slot holds one block of every KV tensor, one tensor after another, each in
the order of the layout's shape without its block axis, so that its bytes mean the same whatever the strides.

Copied piece by piece, 250 blocks of the demo model (184 MB) in 80 ms: gathers and scatters over many blocks took 110 ms
on one thread, and longer where torch's threads have to wait for one another on busy cores.

INVARIANT: nothing is copied unless every block and every slot of the step exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from asyncpage.backends.contract import KVLayout
from asyncpage.errors import ProtocolError
from asyncpage.messages import Int32
from asyncpage.pipes.host_arena import attach_arena


@dataclass(frozen=True, slots=True)
class SlotPart:
    """Where in a slot of `slot_bytes` some KV tensors lie, beside those of another model."""

    begin: int
    slot_bytes: int


class HostSlots:
    """The arena as this executor sees it, mapped at the first use: only then is its size known to be set.

    `pool`: KV tensors, all of `layout`. `fd` None: there is no arena. `part`: which of a slot's bytes are theirs, None
    for all.
    """

    def __init__(
        self, fd: int | None, pool: Sequence[torch.Tensor], layout: KVLayout, part: SlotPart | None = None
    ) -> None:
        self._fd = fd
        self._blocks = [kv.movedim(layout.block_axis, 0) for kv in pool]
        self._dtype = pool[0].dtype
        self._block_shape = tuple(n for n in layout.shape if n != -1)
        self._own_bytes = layout.block_bytes * len(pool)
        self._part = part or SlotPart(0, self._own_bytes)
        self._slots: torch.Tensor | None = None

    def save(self, saves_S2: Int32) -> None:
        """Copy blocks to slots. Errors: `ProtocolError` when there is no such slot."""
        slots = self._checked(saves_S2[:, 1])
        for block, place in saves_S2.tolist():
            for tensor, kv in enumerate(self._blocks):
                slots[place, tensor].copy_(kv[block])

    def load(self, loads_L2: Int32) -> None:
        """Copy slots to blocks. Errors: `ProtocolError` when there is no such slot."""
        slots = self._checked(loads_L2[:, 0])
        for place, block in loads_L2.tolist():
            for tensor, kv in enumerate(self._blocks):
                kv[block].copy_(slots[place, tensor])

    def close(self) -> None:
        """Let go of the map and the pool."""
        self._slots = None
        self._blocks.clear()

    def _checked(self, numbers: Int32) -> torch.Tensor:
        """The arena as [slots, KV tensors, *block], which has all these slots."""
        if self._slots is None:
            if self._fd is None:
                raise ProtocolError("a step moves blocks to or from the host, and this executor was given no arena")
            arena = attach_arena(self._fd, self._part.slot_bytes)
            slots = torch.frombuffer(arena, dtype=torch.uint8).view(-1, self._part.slot_bytes)  # which keeps the map
            own = slots[:, self._part.begin : self._part.begin + self._own_bytes].view(self._dtype)
            self._slots = own.view(len(own), len(self._blocks), *self._block_shape)
        if int(numbers.min()) < 0 or int(numbers.max()) >= len(self._slots):
            raise ProtocolError(
                f"a step names host slots from {int(numbers.min())} to {int(numbers.max())}; "
                f"the arena has {len(self._slots)}"
            )
        return self._slots
