"""The bell: an eventfd that wakes one end of a link and carries two counters in its one number.

The other end rings it after it published records and after it released room. In ordered mode the number only means
"look"; otherwise its low half counts published and its high half released units of 16 bytes, because there the
shared cursors must not be trusted (see `ring`).

INVARIANT: it is rung after every publication and every release, never on a condition that reads shared memory: a
conditional wake-up needs a store-load fence, Python has none, and wake-ups would be lost.
"""

from __future__ import annotations

import os

UNIT = 16  # bytes; the ring's alignment
_HALF = 32
_LOW = (1 << _HALF) - 1


def create_bell() -> int:
    """A new eventfd, non-blocking, not inherited unless passed on purpose."""
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


def ring_bell(fd: int, published: int, released: int, *, ordered: bool) -> None:
    """Wake the other end. `published`, `released`: bytes since the last ring, multiples of `UNIT`.

    In ordered mode the number is 1: nobody reads the halves, and an end that always finds its messages by polling
    may leave them unread for so long that they would overflow.
    """
    os.eventfd_write(fd, 1 if ordered else published // UNIT | released // UNIT << _HALF)


def answer_bell(fd: int) -> tuple[int, int]:
    """Reset the bell and return the bytes (published, released) since the last answer; never blocks."""
    try:
        number = os.eventfd_read(fd)
    except BlockingIOError:
        return 0, 0
    return (number & _LOW) * UNIT, (number >> _HALF) * UNIT
