"""Starts the far end of a link: an executor in a process of its own, or in a thread of this one.

`actors/executor.py` launches, watches the sentinel, kills and reaps; the far end runs `executor/process.py`.

INVARIANT: whatever was launched is reaped by `Running.wait`, which also closes every descriptor of the launch.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from asyncpage.clock import Clock
from asyncpage.messages import Load
from asyncpage.pipes.link import Link, LinkDescriptors, attach_link, create_link

CHILD_ENVIRONMENT: Mapping[str, str] = {
    # OpenMP threads that spin while they wait starve the control plane where both share the cores.
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "1000",
    # Keep big temporaries on the heap: glibc maps them anew and faults every page in, twice the time at batch 32.
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "268435456",
}
"""Defaults of an executor's environment; what the user has set wins."""


BURIAL_S = 10.0
"""Freeing a large model takes seconds; what SIGKILL has not ended by then hangs in the kernel."""


class Running(Protocol):
    """A far end that was started."""

    @property
    def link(self) -> Link:
        """The near end of its link."""
        ...

    @property
    def sentinel_fd(self) -> int:
        """Becomes readable when it is dead, whatever killed it."""
        ...

    @property
    def pid(self) -> int: ...

    def kill(self) -> None:
        """Make it end: at once where that is possible. The link is of no use afterwards."""
        ...

    def wait(self) -> str:
        """Reap it, close the link and the sentinel, and say how it ended. Blocks until the sentinel is readable."""
        ...


class Launcher(Protocol):
    """A way to start far ends, one after another."""

    def launch(self, load: Load) -> Running:
        """Start one and send it `load`; does not wait for the answer. Errors: `OSError`."""
        ...


async def put_down(running: Running, clock: Clock, grace_s: float) -> str | None:
    """Wait until `running` ends by itself, kill it after `grace_s`, and reap it: how it ended.

    None when it has outlived its killing by `BURIAL_S`; then it is not reaped.
    """
    dead = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(running.sentinel_fd, dead.set)
    is_given_up = False

    def give_up() -> None:
        nonlocal is_given_up
        is_given_up = True
        dead.set()

    timers = [clock.call_later(grace_s + BURIAL_S, give_up)]
    if grace_s > 0:
        timers.append(clock.call_later(grace_s, running.kill))
    else:
        running.kill()
    try:
        await dead.wait()
    finally:
        loop.remove_reader(running.sentinel_fd)
        for timer in timers:
            timer.cancel()
    return None if is_given_up else running.wait()


class ProcessLauncher:
    """Each far end is a new process, never a fork of this one, tied to this one's life.

    It inherits the link's descriptors and the host arena's, which have the same numbers there.
    `main`: what the interpreter runs, with the link's descriptors as one further argument. The process dies with the
    thread that launched it, so that thread must live as long as the engine.
    """

    def __init__(self, main: Sequence[str] = ("-m", "asyncpage.executor")) -> None:
        self._main = tuple(main)

    def launch(self, load: Load) -> RunningProcess:
        link, far = create_link()
        arena_fd = load.settings.get("kv_arena_fd")
        try:
            # -P: a user's file in the working folder must not stand in for a module.
            process = subprocess.Popen(
                [sys.executable, "-P", *self._main, far.to_argument()],
                pass_fds=far.fds if arena_fd is None else (*far.fds, arena_fd),
                stdin=subprocess.DEVNULL,
                env={**CHILD_ENVIRONMENT, **os.environ},
            )
        except BaseException:
            link.close()
            raise
        finally:
            far.close()  # an open copy here would hide the child's death from the lifeline
        running = RunningProcess(process, link)
        link.send(load)  # to a child that is dead already it is lost, and the sentinel tells
        return running


class RunningProcess:
    """A `Running` in a process of its own. Where the system has no pidfd, the lifeline is the sentinel."""

    def __init__(self, process: subprocess.Popen[bytes], link: Link) -> None:
        self._process = process
        self._is_open = True
        self.link = link
        self.pid = process.pid
        try:
            self._pidfd = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
        except OSError:
            process.kill()
            process.wait()
            link.close()
            raise
        self.sentinel_fd = link.lifeline_fd if self._pidfd is None else self._pidfd

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> str:
        code = self._process.wait()
        if self._is_open:
            self._is_open = False
            self.link.close()
            if self._pidfd is not None:
                os.close(self._pidfd)
        return f"the executor process {self.pid} {_ending(code)}"


class ThreadLauncher:
    """Each far end is `main` in a daemon thread of this process ("inproc")."""

    def __init__(self, main: Callable[[Link], None]) -> None:
        self._main = main

    def launch(self, load: Load) -> RunningThread:
        link, far = create_link()
        running = RunningThread(self._main, link, far)
        link.send(load)
        return running


class RunningThread:
    """A `Running` in a thread. It cannot be killed while it computes: it ends when it next looks at its link."""

    def __init__(self, main: Callable[[Link], None], link: Link, far: LinkDescriptors) -> None:
        self._main = main
        self._far = far
        self._error: BaseException | None = None
        self._is_open = True
        self.link = link
        self.pid = os.getpid()
        self.sentinel_fd, self._alive_fd = os.pipe()
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)
        self._thread.start()

    def kill(self) -> None:
        self.link.close()

    def wait(self) -> str:
        self._thread.join()
        if self._is_open:
            self._is_open = False
            self.link.close()
            os.close(self.sentinel_fd)
        if self._error is None:
            return "the executor thread returned"
        return f"the executor thread raised {type(self._error).__name__}: {self._error}"

    def _run(self) -> None:
        try:
            far = attach_link(self._far)
            try:
                self._main(far)
            finally:
                far.close()
        except BaseException as error:
            self._error = error
            traceback.print_exception(error)
        finally:
            os.close(self._alive_fd)  # the sentinel's end of file


def _ending(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (by hand, or by the system for want of memory)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
