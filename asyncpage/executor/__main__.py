"""The main of an executor process: `python -m asyncpage.executor LINK`, started by `pipes/launcher.py`.

Ties itself to its parent before anything heavy is imported, then serves the link.

INVARIANT: nothing is imported before the tether that takes longer than the interpreter's own start.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from asyncpage.pipes.descriptors import LinkDescriptors
from asyncpage.pipes.tether import tie_to_parent

if TYPE_CHECKING:
    from asyncpage.executor.process import Runner
    from asyncpage.messages import Load

_M_MMAP_THRESHOLD = -3  # of mallopt(3)
_OWN_PAGES_BYTES = 4 << 20


def main(arguments: list[str], find_loader: Callable[[], Callable[[Load], Runner]]) -> None:
    """Serve the link that `arguments` names with the loader that `find_loader` imports. Does not return."""
    descriptors = LinkDescriptors.from_argument(arguments[0])
    tie_to_parent(descriptors.owner_pid, descriptors.fds[-1])
    _give_memory_back()

    from asyncpage.executor.process import serve
    from asyncpage.pipes.link import attach_link

    serve(attach_link(descriptors), find_loader())
    # The near end waits for this process to be gone, and libraries' exit handlers have nothing left to save.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _give_memory_back() -> None:
    """Let tensors of some size have pages of their own, which go back when they do.

    Left to itself glibc's malloc keeps ever larger ones in its heap, and prefills of many lengths leave that in pieces:
    without this the process grew with every crowd of clients, from 402 MiB to 515 behind the fourth.
    """
    if sys.platform == "linux":
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; others have none
        if set_option is not None:
            set_option(_M_MMAP_THRESHOLD, _OWN_PAGES_BYTES)


def _find_loader() -> Callable[[Load], Runner]:
    from asyncpage.executor.runner import load_runner

    return load_runner


if __name__ == "__main__":
    main(sys.argv[1:], _find_loader)
