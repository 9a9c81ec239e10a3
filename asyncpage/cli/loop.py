"""The event loop that commands run on: uvloop's where it is installed, asyncio's elsewhere.

INVARIANT: importing this file loads neither.
"""

from __future__ import annotations

import asyncio
import gc
from importlib.util import find_spec


def new_runner() -> asyncio.Runner:
    """A runner for one command; its loop lives until the runner is closed."""
    if find_spec("uvloop") is None:
        return asyncio.Runner()
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def keep_what_is_loaded() -> None:
    """What is there stays until the end, so the garbage collector looks through it once more and never again.

    With the demo's vocabulary each full collection held the loop for 50 ms.
    """
    gc.collect()
    gc.freeze()
