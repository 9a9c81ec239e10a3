"""Whether an executor may take over from one that was lost, what it is told so that it can, and why it could not.

Asked by the executor's near end.

INVARIANT: requests go on only where the model is the same and blocks mean the same.
"""

from __future__ import annotations

from dataclasses import replace

from asyncpage.errors import AsyncpageError, ExecutorError, ModelError, UsageError
from asyncpage.messages import Handshake, Load, LoadFailed


def load_for_successors(load: Load, first: Handshake) -> Load:
    """The load that leads to the same pool of blocks, also where another amount of memory is free by then."""
    if "num_kv_blocks" not in load.settings:
        return load
    return replace(load, settings={**load.settings, "num_kv_blocks": first.blocks, "kv_cache_bytes": None})


def difference(before: Handshake, after: Handshake) -> str:
    """What of the model or of the cache's layout differs, for a reader; '' when requests can go on."""
    for name in ("fingerprint", "blocks", "block_size", "groups"):
        if getattr(before, name) != getattr(after, name):
            return f"{name} was {getattr(before, name)}, is {getattr(after, name)}"
    return ""


def error_of(failed: LoadFailed) -> AsyncpageError:
    """The exception that the executor's message stands for; those with more than a text become their base."""
    match failed.kind:
        case "UsageError":
            return UsageError(failed.reason)
        case "ModelError" | "FormatError":
            return ModelError(failed.reason)
        case _:
            return ExecutorError(failed.reason)
