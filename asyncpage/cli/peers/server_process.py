"""A server as a process: started, timed until it gives its first token, weighed, and ended.

INVARIANT: what `start` began has ended, with its children, when its block is left, however that happens; nothing else
is ever ended.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from asyncpage.cli.peers.contention import family
from asyncpage.errors import AsyncpageError

_POLL_S = 0.02
_DRAIN_S, _KILL_S = 15.0, 10.0
_ASK_S = 120.0
_TOLD_LINES = 5  # of the log of a server that failed
_NOT_YET = (502, 503)

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


class ServerFailed(AsyncpageError):
    """A server that was started does not serve."""


@dataclass(frozen=True, slots=True)
class Server:
    """`first_token_s`: from its start to the first token that it served."""

    pid: int
    url: str
    first_token_s: float

    def peak_bytes(self) -> int:
        """Of memory that its processes had resident, each at its own peak; what they share counts once for each."""
        return sum(map(_peak_bytes, family(self.pid)))


@asynccontextmanager
async def start(
    command: Sequence[str], url: str, model: str, log: Path, now: Callable[[], float], *, limit_s: float, nice: int
) -> AsyncIterator[Server]:
    """Run `command` for the block, once it has served a token. `nice`: of its processes, 0 for this one's own.

    Errors: `ServerFailed` with the end of its log.
    """
    began = now()
    process = _begin(command, log)
    try:
        if nice:
            set_priority(process.pid, nice)
        await _first_token(process, url, model, log, now, began + limit_s)
        yield Server(process.pid, url, now() - began)
    finally:
        _end(process)


def set_priority(pid: int, nice: int) -> None:
    """Of a process, and of its session where the system weighs sessions against one another.

    Errors: `ServerFailed` where that is not permitted.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        group = Path(f"/proc/{pid}/autogroup")
        if group.exists():
            group.write_text(str(nice))
    except PermissionError:
        raise ServerFailed(f"--priority {nice} is not permitted; leave it out, or run as root") from None


async def _first_token(
    process: subprocess.Popen[bytes], url: str, model: str, log: Path, now: Callable[[], float], until: float
) -> None:
    body = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
    said = ""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ASK_S)) as session:
        while now() < until:
            if process.poll() is not None:
                raise ServerFailed(f"it ended with {process.returncode} before it served a token{_tail(log)}")
            try:
                async with session.post(url + "/v1/completions", json=body) as response:
                    text = await response.text()
                    if response.status == 200:
                        return
                    if response.status not in _NOT_YET:
                        raise ServerFailed(f"it answers {response.status} to a first request: {text[:300]}")
                    said = f", it said {response.status}"
            except (aiohttp.ClientError, OSError):
                pass  # it does not listen yet
            await asyncio.sleep(_POLL_S)
    raise ServerFailed(f"it served no token in time{said}{_tail(log)}")


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()[-_TOLD_LINES:]
    return f"; the end of {log}:\n" + "\n".join(f"  {line}" for line in lines)


def _begin(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )


def _end_with_parent() -> None:
    """In the child: a comparison that is killed leaves no server behind."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    started = family(process.pid)
    for number, patience_s in ((signal.SIGINT, _DRAIN_S), (signal.SIGTERM, _KILL_S), (signal.SIGKILL, _KILL_S)):
        if process.poll() is not None:
            break
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    for pid in started[1:]:
        # By now the number could be another's: only what is still of the session that was begun here is ended.
        with suppress(OSError):
            if os.getsid(pid) == process.pid:
                os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + _KILL_S
    while any(map(_runs, started[1:])) and time.monotonic() < until:
        time.sleep(_POLL_S)


def _runs(pid: int) -> bool:
    """Whether it is there; one that has ended stays listed as a zombie until somebody has asked for its code."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


def _peak_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
