"""Starts the real server the way a user does, and makes sure that it is gone afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def serving(log: Path, arguments: Sequence[str] = ()) -> Iterator[tuple[str, int]]:
    """`./scripts/serve` on a free port: its address and process id. Ended with SIGTERM."""
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [str(ROOT / "scripts/serve"), "--port", "0", *arguments], stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, f"{line!r}\n{log.read_text()}"
        yield found[0], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            assert process.stdout is not None
            process.stdout.close()
    assert process.returncode == 0, log.read_text()


def family(pid: int) -> set[int]:
    """A process and all its descendants that exist now."""
    found = {pid}
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
            found |= {descendant for child in children for descendant in family(int(child))}
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found
