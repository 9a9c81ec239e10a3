"""What a server holds of the machine: processes, descriptors, memory, shared memory, sockets, read from /proc.

`server` and `invariants` ask. Linux only, as the shared-memory rings are.
"""

from __future__ import annotations

import contextlib
import os
from itertools import pairwise
from pathlib import Path

_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def family(pid: int) -> list[int]:
    """A process and all its descendants that exist now, itself first."""
    found = [pid]
    with contextlib.suppress(*_GONE):
        for task in os.listdir(f"/proc/{pid}/task"):
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
            found += [descendant for child in children for descendant in family(int(child))]
    return found


def runs_module(pid: int, module: str) -> bool:
    """Whether it was started as `python -m MODULE`."""
    with contextlib.suppress(*_GONE):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return (b"-m", module.encode()) in pairwise(words)
    return False


def is_alive(pid: int) -> bool:
    """Exists and is no zombie."""
    with contextlib.suppress(*_GONE):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def descriptors(pid: int) -> list[str]:
    """What each open descriptor is: "memfd", "socket", "anon" or a file's kind, sorted."""
    found = []
    with contextlib.suppress(*_GONE):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(*_GONE):
                found.append(os.readlink(f"/proc/{pid}/fd/{name}").split(":")[0])
    return sorted(found)


def memory_bytes(pid: int) -> int:
    """Resident set, 0 for a process that is gone."""
    with contextlib.suppress(*_GONE, StopIteration, ValueError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) * 1024
    return 0


def segments(pid: int) -> set[str]:
    """Shared memory that a process has mapped and that has a name in a file system."""
    with contextlib.suppress(*_GONE):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return {line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line}
    return set()


def memfds(pid: int) -> list[Path]:
    """The anonymous shared memory of a process, as paths that can be opened."""
    found = []
    with contextlib.suppress(*_GONE):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(*_GONE):
                if os.readlink(f"/proc/{pid}/fd/{name}").startswith("/memfd:"):
                    found.append(Path(f"/proc/{pid}/fd/{name}"))
    return found


def listening(pids: list[int]) -> set[str]:
    """Every socket of these processes that others could connect or send to: "tcp 127.0.0.1:8000", "unix @name"."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(*_GONE):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(*_GONE):
                    target = os.readlink(f"/proc/{pid}/fd/{name}")
                    if target.startswith("socket:["):
                        inodes.add(target[8:-1])
    found = set()
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[9] in inodes and (parts[3] == "0A" or kind.startswith("udp")):
                address, port = parts[1].rsplit(":", 1)
                shown = (
                    ".".join(str(byte) for byte in reversed(bytes.fromhex(address))) if len(address) == 8 else address
                )
                found.add(f"{kind} {shown}:{int(port, 16)}")
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        parts = line.split()
        if parts[6] in inodes and len(parts) > 7:
            found.add(f"unix {parts[7]}")
    return found
