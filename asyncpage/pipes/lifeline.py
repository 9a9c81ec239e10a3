"""The lifeline: a socketpair that carries nothing and whose end of file says that the other side is gone.

Each link has one. The kernel closes a dead process's end whatever killed it, so no time-out is involved.

INVARIANT: an end stays open exactly as long as its link, and lives in one process (or one thread) only.
"""

from __future__ import annotations

import select
import socket

# RDHUP is news of the peer's close alone; where it is missing, a readable lifeline can mean nothing else either.
LIFELINE_EVENTS = getattr(select, "POLLRDHUP", select.POLLIN)


def create_lifeline() -> tuple[int, int]:
    """A new pair of descriptors, one for each side; neither is inherited unless passed on purpose."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return near.detach(), far.detach()
