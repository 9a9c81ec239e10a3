"""Ties an executor process to its parent, so that it never outlives it.

Called first thing in the child (`__main__.py`), before anything heavy is imported; it talks to nobody.
Three belts, because each has a hole: the kernel's parent-death signal does not cover a parent that died before it
was asked for; the parent's process id covers that; the lifeline covers platforms without the signal.

INVARIANT: after `tie_to_parent` has returned, this process ends within moments of its parent, whatever it is doing.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from types import FrameType

_PR_SET_PDEATHSIG = 1
_ORPHANED = 1  # exit code that nobody is left to read


def tie_to_parent(parent_pid: int, lifeline_fd: int) -> None:
    """End this process when `parent_pid` dies or the other end of `lifeline_fd` closes.

    Must be called in the main thread. The parent-death signal is bound to the parent's thread that started this
    process: that thread's end counts as the parent's.
    """
    # Ctrl-C and a service manager's stop reach the whole group. The parent drains and then says when to leave.
    signal.signal(signal.SIGINT, _stay)
    signal.signal(signal.SIGTERM, _stay)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(_ORPHANED)
    threading.Thread(target=_watch, args=(lifeline_fd,), name="lifeline", daemon=True).start()


def _stay(number: int, frame: FrameType | None) -> None:
    """A handler instead of SIG_IGN, which a compiler started from here would inherit."""


def _watch(lifeline_fd: int) -> None:
    poll = select.poll()
    # RDHUP where it exists: it is set by the peer's close alone.
    poll.register(lifeline_fd, getattr(select, "POLLRDHUP", select.POLLIN))
    while not poll.poll():
        pass
    os._exit(_ORPHANED)
