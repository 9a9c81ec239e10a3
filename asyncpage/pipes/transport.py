"""What a link needs of the thing that carries its bytes; a ring and a socket are the two.

INVARIANT: messages come out as they went in, whole and in order, or the other end is gone, or `ProtocolError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

QUEUE_BYTES = 256 << 20
"""What a sender that may not block keeps while the other end does not read.

Two steps in flight that move whole prompts into rows are the most that is ever sent ahead: 64 million token ids.
"""


class Transport(Protocol):
    """One end of a duplex of messages. An end is used by one thread."""

    @property
    def wake_fd(self) -> int:
        """Readable when `acknowledge` and `read` may have something to do."""
        ...

    @property
    def crossed(self) -> tuple[int, int]:
        """Bytes sent and received since it began, headers and padding included."""
        ...

    def write(self, parts: Sequence[bytes]) -> None:
        """Send one message, the concatenation of `parts`.

        An end that may block waits until all of it is on its way: `LinkClosed` when the other end goes meanwhile.
        An end that may not queues what finds no room, and `acknowledge` sends it on; `MailboxFull` past the bound,
        then nothing of the message was sent. What is sent to an end that is gone is lost; the lifeline tells.
        """
        ...

    def read(self) -> bytes | None:
        """The next whole message or None; never blocks. Errors: `ProtocolError`."""
        ...

    def acknowledge(self) -> None:
        """Reset the wake-up and send on what was queued; never blocks."""
        ...

    def poll(self) -> bool:
        """Look for news without a system call for a few turns; False at once where that is of no use."""
        ...

    def close(self) -> None:
        """Let go of memory and descriptors."""
        ...
