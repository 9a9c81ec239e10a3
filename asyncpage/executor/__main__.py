"""The main of an executor process: `python -m asyncpage.executor LINK`, started by `pipes/launcher.py`.

Ties itself to its parent before anything heavy is imported, then serves the link.

INVARIANT: nothing is imported before the tether that takes longer than the interpreter's own start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from asyncpage.pipes.descriptors import LinkDescriptors
from asyncpage.pipes.tether import tie_to_parent

if TYPE_CHECKING:
    from asyncpage.executor.process import Runner
    from asyncpage.messages import Load


def main(arguments: list[str], find_loader: Callable[[], Callable[[Load], Runner]]) -> None:
    """Serve the link that `arguments` names with the loader that `find_loader` imports. Does not return."""
    descriptors = LinkDescriptors.from_argument(arguments[0])
    tie_to_parent(descriptors.owner_pid, descriptors.fds[-1])

    from asyncpage.executor.process import serve
    from asyncpage.pipes.link import attach_link

    serve(attach_link(descriptors), find_loader())
    # The near end waits for this process to be gone, and libraries' exit handlers have nothing left to save.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _find_loader() -> Callable[[Load], Runner]:
    from asyncpage.executor.runner import load_runner

    return load_runner


if __name__ == "__main__":
    main(sys.argv[1:], _find_loader)
