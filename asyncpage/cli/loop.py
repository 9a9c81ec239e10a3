"""The event loop that commands run on: uvloop's where it is installed, asyncio's elsewhere.

INVARIANT: importing this file loads neither.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec


def new_runner() -> asyncio.Runner:
    """A runner for one command; its loop lives until the runner is closed."""
    if find_spec("uvloop") is None:
        return asyncio.Runner()
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
