"""SIGKILL of the API process, at any moment: no process and no shared memory stays behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.serving import family

MOMENTS = 50
GONE_WITHIN_S = 5.0
AT_ONCE = 4
LONGEST_START_S = 12.0  # four at once on two cores are up and answering by then


def is_alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def kill_at(moment: int, model: Path) -> list[int]:
    """Start a server, kill it at the moment that this number stands for, and return who is still there."""
    delay_s = random.Random(moment).uniform(0.0, LONGEST_START_S)
    command = [sys.executable, "-m", "asyncpage", "serve", str(model), "--port", "0", "--log-level", "error"]
    command += ["--num-kv-blocks", "64", "--max-model-len", "256", "--cpu-threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    relatives: set[int] = set()
    until = time.monotonic() + delay_s
    while time.monotonic() < until:
        relatives |= family(process.pid)
        time.sleep(0.02)  # the moment itself is what is being tried out
    relatives |= family(process.pid)
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    until = time.monotonic() + GONE_WITHIN_S
    while any(map(is_alive, relatives)) and time.monotonic() < until:
        time.sleep(0.02)
    return [pid for pid in relatives if is_alive(pid)]


def test_a_server_killed_at_fifty_random_moments_leaves_nothing(tiny_model: Path) -> None:
    segments = set(os.listdir("/dev/shm"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        left = [pid for pids in pool.map(lambda moment: kill_at(moment, tiny_model), range(MOMENTS)) for pid in pids]
    assert left == []
    assert set(os.listdir("/dev/shm")) <= segments
