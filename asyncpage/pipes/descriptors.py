"""The far end of a link before it is attached: descriptors and what they must belong to.

`create_link` makes it; it goes to another process (its descriptors by inheritance, the rest as an argument) or to
another thread of the same one.

INVARIANT: its descriptors are closed once, by `close` or by the link that was attached to them.
"""

from __future__ import annotations

import os
from typing import Literal

from asyncpage.errors import ProtocolError

LinkKind = Literal["ring", "socket"]
_COUNTS = {"ring": 5, "socket": 2}


class LinkDescriptors:
    """`fds` by kind: ring: memory down, memory up, far bell, near bell, lifeline; socket: stream, lifeline.

    `owner_pid` and `epoch` are those of the end that created the link; an attaching end checks them.
    """

    __slots__ = ("_open", "epoch", "fds", "kind", "owner_pid")

    def __init__(self, kind: LinkKind, fds: tuple[int, ...], owner_pid: int, epoch: int) -> None:
        self.kind = kind
        self.fds = fds
        self.owner_pid = owner_pid
        self.epoch = epoch
        self._open = True

    def to_argument(self) -> str:
        """One word for a child's command line; pass `fds` as `pass_fds` beside it."""
        return f"{self.kind}:{','.join(map(str, self.fds))}:{self.owner_pid}:{self.epoch}"

    @classmethod
    def from_argument(cls, argument: str) -> LinkDescriptors:
        """The inverse of `to_argument`, in the child. Errors: `ProtocolError`."""
        try:
            kind, fds, owner_pid, epoch = argument.split(":")
            numbers = tuple(int(fd) for fd in fds.split(","))
            pid, age = int(owner_pid), int(epoch)
        except ValueError:
            raise ProtocolError(f"link descriptors must read KIND:FD,FD,...:PID:EPOCH, found {argument!r}") from None
        if kind == "ring" and len(numbers) == _COUNTS[kind]:
            return cls("ring", numbers, pid, age)
        if kind == "socket" and len(numbers) == _COUNTS[kind]:
            return cls("socket", numbers, pid, age)
        raise ProtocolError(f"link descriptors name {len(numbers)} descriptors of kind {kind!r}, expected {_COUNTS}")

    def duplicate(self) -> LinkDescriptors:
        """The same far end over new descriptors, for a thread of this process."""
        return LinkDescriptors(self.kind, tuple(os.dup(fd) for fd in self.fds), self.owner_pid, self.epoch)

    def check_open(self) -> None:
        """Errors: `ProtocolError` when they are closed, or belong to a link already."""
        if not self._open:
            raise ProtocolError("these link descriptors are already closed or attached; a far end is attached once")

    def hand_over(self) -> None:
        """A link that was attached closes them from now on."""
        self._open = False

    def close(self) -> None:
        """Close this process's copies, once the child has its own; a second call does nothing.

        Until then the far lifeline is open here too and the child's death cannot be seen through it.
        """
        if self._open:
            self._open = False
            for fd in self.fds:
                os.close(fd)
