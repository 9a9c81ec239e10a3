"""The native code that this process runs: opened once, by whoever loads a model, and found here by attention backends.

INVARIANT: what is opened is what `native` has built for this processor; opening it again changes the threads alone.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from asyncpage.caches import native_folder
from asyncpage.kernels import native
from asyncpage.kernels.variant import Variant
from asyncpage.machine import read_cores


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """`threads`: what its work is shared by."""

    path: Path
    variant: Variant
    threads: int
    code: ctypes.CDLL


_current: Library | str | None = None


def open_library(folder: Path | None, threads: int) -> Library | str:
    """The library in `folder`, built first where it is not there yet, which takes seconds; or why there is none."""
    global _current
    found = native.build(folder)
    if found.path is None or found.variant is None:
        _current = found.reason
        return _current
    try:
        _current = Library(found.path, found.variant, threads, ctypes.CDLL(str(found.path)))
    except OSError as error:
        _current = f"{found.path} does not load: {error}"
    return _current


def current_library() -> Library | str:
    """What this process has opened; where nobody has tried, what it opens now, for all cores."""
    return _current or open_library(native_folder(), max(1, int(read_cores())))


def lack() -> str:
    """Why this process has no library and cannot have one, "" where it can. Nothing is built for the answer."""
    if _current is not None:
        return _current if isinstance(_current, str) else ""
    found = native.look(native_folder())
    return found.reason if found.state == "none" else ""
