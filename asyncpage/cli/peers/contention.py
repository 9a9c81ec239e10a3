"""How many cores others used while something was measured, read from the system's own accounts.

INVARIANT: what the watched processes, their children and this process used is not counted as others'.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

_PROC = Path("/proc")
_OWN_TIMES = slice(11, 15)  # of a process, behind its name: in user and system mode, its own and its ended children's
_IDLE = (3, 4)  # of the machine: idle, and waiting for a disk
_TIMES = 8  # user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user


def family(pid: int) -> tuple[int, ...]:
    """A process and all its descendants that live, parents first."""
    found, rest = [], [pid]
    while rest:
        one = rest.pop()
        found.append(one)
        for children in (_PROC / str(one) / "task").glob("*/children"):
            rest += map(int, _read(children).split())
    return tuple(found)


class Contention:
    """From its making on. `now`: seconds on a monotone clock. `pid`: of what is measured, None for nothing yet."""

    def __init__(self, now: Callable[[], float], pid: int | None = None) -> None:
        self._now = now
        self._began, self._busy_s, self._own_s = now(), _busy_s(), _own_s(pid)

    def other_cores(self, pid: int | None) -> float:
        """Cores that others kept busy since, on average. `pid`: the same, or one that was started since."""
        passed_s = max(self._now() - self._began, 1e-9)
        return max(0.0, _busy_s() - self._busy_s - (_own_s(pid) - self._own_s)) / passed_s


def _own_s(pid: int | None) -> float:
    return _used_s((os.getpid(), *(() if pid is None else family(pid))))


def _used_s(pids: Iterable[int]) -> float:
    ticks = 0
    for pid in set(pids):
        behind_name = _read(_PROC / str(pid) / "stat").rpartition(")")[2].split()
        ticks += sum(map(int, behind_name[_OWN_TIMES]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _busy_s() -> float:
    times = list(map(int, (_PROC / "stat").read_text().splitlines()[0].split()[1 : 1 + _TIMES]))
    return (sum(times) - sum(times[at] for at in _IDLE)) / os.sysconf("SC_CLK_TCK")


def _read(path: Path) -> str:
    """ "" for what is gone by now."""
    try:
        return path.read_text()
    except OSError:
        return ""
