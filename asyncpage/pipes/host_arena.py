"""The host arena: memory for KV blocks beside the device's, in slots, shared with the executor.

The process of the API makes it and hands its descriptor to every executor it launches, as it does with a link's, so
what is in it outlives an executor. The executor copies blocks in and out (`executor/host_slots.py`), the archive reads
and writes whole slots; who may touch a slot at what time is decided in `core/tier.py`.

INVARIANT: its size is set once and sealed, so that no side can cut it under another that has it mapped.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from asyncpage.errors import ProtocolError

_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0) | getattr(fcntl, "F_SEAL_SEAL", 0)


class HostArena:
    """The owner's side. Nameless memory, 0600; its pages are taken when they are first written.

    `fd`: for `Load.settings["kv_arena_fd"]` and the child's inheritance, valid until `close`.
    Errors: `OSError` when the system gives none.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("asyncpage-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(self.fd, 0o600)
        self.slots = self.slot_bytes = 0
        self._view: memoryview | None = None

    def set_size(self, slots: int, slot_bytes: int) -> None:
        """Called once, when the executor has told how large a block is and before it is sent a step."""
        os.ftruncate(self.fd, slots * slot_bytes)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        self.slots, self.slot_bytes = slots, slot_bytes
        # The map goes with the last view of it: a thread that still reads a slot keeps it alive.
        self._view = memoryview(mmap.mmap(self.fd, slots * slot_bytes))

    def slot(self, number: int) -> memoryview:
        """One slot's bytes, writable. Errors: `IndexError` outside the arena."""
        if self._view is None or not 0 <= number < self.slots:
            raise IndexError(f"slot {number} of an arena of {self.slots}")
        return self._view[number * self.slot_bytes : (number + 1) * self.slot_bytes]

    def close(self) -> None:
        """Let go; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._view = None


def attach_arena(fd: int, slot_bytes: int) -> mmap.mmap:
    """The executor's side: a map of the whole arena, whose length is a multiple of `slot_bytes`.

    The descriptor stays the caller's. Errors: `ProtocolError` when it is not an arena of such slots.
    """
    try:
        size = os.fstat(fd).st_size
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ProtocolError(f"descriptor {fd} is not a host arena: {error.strerror}") from None
    if seals & _SEALS != _SEALS or size == 0 or size % slot_bytes:
        raise ProtocolError(
            f"descriptor {fd} is not a host arena of slots of {slot_bytes} bytes: {size} bytes, seals {seals:#x}"
        )
    return mmap.mmap(fd, size)
