"""The main of a process that holds a part of a model's experts: `python -m asyncpage.executor.expert_rank LINK`.

The executor starts it (`expert_ranks`). Ties itself to its parent before anything heavy is imported, then works.

INVARIANT: nothing is imported before the tether that takes longer than the interpreter's own start.
"""

from __future__ import annotations

import os
import sys
import traceback

from asyncpage.pipes.descriptors import LinkDescriptors
from asyncpage.pipes.tether import tie_to_parent


def main(arguments: list[str]) -> None:
    """Work for the link that `arguments` names. Does not return."""
    descriptors = LinkDescriptors.from_argument(arguments[0])
    tie_to_parent(descriptors.owner_pid, descriptors.fds[-1])

    from asyncpage.executor.expert_worker import work
    from asyncpage.pipes.link import attach_link

    code = 1
    try:
        work(attach_link(descriptors))
        code = 0
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # at once: the executor waits for it, and a library's exit handlers might wait for the executor


if __name__ == "__main__":
    main(sys.argv[1:])
