"""Where this user's caches are, which may be deleted at any time.

INVARIANT: nothing is made here; a folder that is named need not exist.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`ASYNCPAGE_CACHE`, or `asyncpage` below `XDG_CACHE_HOME`, or `~/.cache/asyncpage`."""
    own = os.environ.get("ASYNCPAGE_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification says that a relative path there is invalid and to be ignored.
    if shared and os.path.isabs(shared):
        return Path(shared) / "asyncpage"
    return Path.home() / ".cache" / "asyncpage"


def native_folder() -> Path:
    """Of native code that was built on this machine."""
    return cache_dir() / "native"
