"""What this machine grants this process: memory and cores by the control group's limits, not the host's.

The executor sizes its threads and its KV pool from it; the command line checks a model's size before loading.

INVARIANT: a limit that cannot be read is no limit; the answer is never more than what the kernel says is available.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Version 1 of control groups writes "no limit" as a number near 2**63; no machine has that much.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `limit` is the tightest limit of the control groups, None without one; `available` respects it."""

    total: int
    available: int
    limit: int | None


def read_memory(root: Path = Path("/")) -> Memory:
    """Memory that a process may still take: /proc/meminfo, cut to what each control group on the way up leaves.

    A group's page cache counts as available, because the kernel gives it up before it refuses memory.
    """
    host = _table(root / "proc/meminfo")
    total = host.get("MemTotal:", 0) * 1024
    available = host.get("MemAvailable:", 0) * 1024
    limit: int | None = None
    for group in _groups(root, "memory"):
        most = _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")
        if most is None or most >= _NO_LIMIT:
            continue
        used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
        stat = _table(group / "memory.stat")
        # Version 1 tells the group's own pages and, as total_, those of the whole tree that the limit is for.
        cached = sum(stat.get(f"total_{kind}_file", stat.get(f"{kind}_file", 0)) for kind in ("active", "inactive"))
        limit = most if limit is None else min(limit, most)
        available = min(available, max(0, most - used + cached))
    return Memory(total, available, limit)


def read_cores(root: Path = Path("/")) -> float:
    """Cores' worth of time that this process may use: its affinity, cut to the control groups' quotas."""
    cores = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 1)
    for group in _groups(root, "cpu"):
        words = _words(group / "cpu.max") or [
            *_words(group / "cpu.cfs_quota_us"),
            *_words(group / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            cores = min(cores, int(words[0]) / int(words[1]))
    return cores


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control group and of those above it, for versions 2 and 1."""
    base = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            top = base
        elif controller in controllers.split(","):
            top = base / controller
        else:
            continue
        # Inside a container the path may be the host's, which does not exist here: the top is then our own group.
        own = top / path.lstrip("/")
        yield own
        yield from (parent for parent in own.parents if parent == top or top in parent.parents)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _words(file: Path) -> list[str]:
    return [word for line in _lines(file)[:1] for word in line.split()]


def _number(file: Path) -> int | None:
    words = _words(file)
    return int(words[0]) if words and words[0].isdigit() else None


def _table(file: Path) -> dict[str, int]:
    rows = (line.split() for line in _lines(file))
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2 and row[1].isdigit()}
