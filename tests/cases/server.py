"""The real server as a child process, started the way a user does, and what can be read of it from outside.

`suite` starts and shares servers. A start that fails tells its exit code, its time and its last words.

INVARIANT: whatever ends a test run, `stop` leaves no process of this server.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cases.flags import FEATURE_FLAGS
from tests.cases.model_folder import Model
from tests.cases.process_state import family, is_alive, runs_module

ROOT = Path(__file__).resolve().parents[2]
START_S = 90.0  # eight seconds alone; machines that run tests are shared
STOP_S = 40.0
EXECUTOR, COMPILER = "asyncpage.executor", "asyncpage.grammar"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A start that ended by itself."""

    code: int
    seconds: float
    log: str
    family: tuple[int, ...] = ()

    @property
    def lacks(self) -> str | None:
        """The feature that this command line does not know, named in its refusal."""
        found = re.search(r"does not know (--[a-z-]+)", self.log)
        return FEATURE_FLAGS.get(found[1]) if found and self.code == 2 else None


class DidNotStart(Exception):
    """`attempt` says how it went."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(f"exit {attempt.code} after {attempt.seconds:.1f} s\n{attempt.log[-3000:]}")
        self.attempt = attempt


def command(model: Path | str, flags: Sequence[str], program: str | None = None) -> list[str]:
    """`program`: a file beside this one that runs instead of the package."""
    run = ["-m", "asyncpage"] if program is None else [str(Path(__file__).with_name(program))]
    return [sys.executable, *run, "serve", str(model), *flags]


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ASYNCPAGE_")}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(changes or {})}


def attempt(
    model: Path | str,
    flags: Sequence[str],
    limit_s: float = START_S,
    *,
    path: str | None = None,
    before: Callable[[], None] | None = None,
) -> Attempt:
    """Start a server that is expected to end by itself. Errors: `TimeoutExpired` when it does not; it is gone then.

    `path`: a folder to import from first. `before`: runs in the new process.
    """
    started = time.monotonic()
    env = environment() if path is None else environment({"PYTHONPATH": f"{path}:{ROOT}"})
    process = subprocess.Popen(
        command(model, flags), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, preexec_fn=before
    )
    try:
        out, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Attempt(process.returncode, time.monotonic() - started, out.decode(errors="replace"))


class Server:
    """One running server. `url` and `pid` once it is up."""

    def __init__(
        self, model: Model, flags: Sequence[str], log: Path, *, port: int = 0, env: Mapping[str, str] | None = None,
        umask: int = -1, program: str | None = None,
    ) -> None:  # fmt: skip
        """Errors: `DidNotStart`."""
        self.model = model
        self.flags = tuple(flags)
        self.log_file = log
        started = time.monotonic()
        arguments = ["--port", str(port), "--cpu-threads", "1", *model.flags, *flags]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command(model.folder, arguments, program),
                stdout=subprocess.PIPE,
                stderr=out,
                env=environment(env),
                umask=umask,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        found = re.search(r"http://[0-9.]+:(\d+)", line)
        self.start_s = time.monotonic() - started
        if not found:
            code = self.process.wait(START_S)
            self.process.stdout.close()
            raise DidNotStart(Attempt(code, self.start_s, log.read_text(errors="replace")))
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def executor(self) -> int | None:
        """The executor's process id, None while there is none."""
        return next((pid for pid in self.family() if runs_module(pid, EXECUTOR) and is_alive(pid)), None)

    def family(self) -> list[int]:
        return family(self.pid)

    def compilers(self) -> list[int]:
        """The processes that compile grammars: one is kept warm from the first grammar on."""
        return [pid for pid in self.family() if runs_module(pid, COMPILER)]

    def log(self, start: int = 0) -> str:
        """What it has logged from the byte `start` on."""
        return self.log_file.read_bytes()[start:].decode(errors="replace")

    def log_size(self) -> int:
        return self.log_file.stat().st_size

    def stop(self, how: int = signal.SIGTERM) -> int:
        """End it and wait; its exit code. Killed when it takes too long."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()
        return code
