"""Host memory that an engine takes for KV blocks.

The engine opens it before it launches the executor.

INVARIANT: what is asked for is there, or the start ends with a line that says what to lower.
"""

from __future__ import annotations

from pathlib import Path

from asyncpage.config import EngineConfig
from asyncpage.errors import UsageError
from asyncpage.machine import read_memory
from asyncpage.pipes.host_arena import HostArena
from asyncpage.pipes.kv_folder import prepare_folder
from asyncpage.pipes.link import CAN_SHARE_MEMORY


def open_arena(config: EngineConfig) -> HostArena | None:
    """Host memory for KV blocks, of no size yet; None where none is wanted.

    Errors: `UsageError` when there is too little of it, or the folder for files cannot be used.
    """
    size = config.host_tier_bytes
    if not size:
        return None
    if config.kv_dir is not None:
        prepare_folder(Path(config.kv_dir).expanduser())
    if not CAN_SHARE_MEMORY:
        raise UsageError("--kv-offload-gb and --kv-dir need shared memory without a name (Linux); leave them out here")
    available = read_memory().available
    if available and size > available:
        raise UsageError(
            f"--kv-offload-gb asks for {size / (1 << 30):.2f} GiB of host memory, {available / (1 << 30):.2f} GiB are "
            "available; lower it"
        )
    return HostArena()
