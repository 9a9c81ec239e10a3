"""The executor's loop, its tether to the parent, and its main."""

from __future__ import annotations

import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import ProtocolError
from asyncpage.executor.process import Runner, one_line, serve
from asyncpage.messages import (
    EMPTY,
    Handshake,
    Load,
    LoadFailed,
    NewRow,
    RequestId,
    Shutdown,
    Step,
    StepDone,
    StepFailed,
)
from asyncpage.pipes.launcher import ProcessLauncher
from asyncpage.pipes.link import Link, attach_link, create_link

MAIN = Path(__file__).with_name("arithmetic_executor.py")
ARITHMETIC = runpy.run_path(str(MAIN))


class Served:
    """`serve` in a thread; `near` is the other end."""

    def __init__(self) -> None:
        self.near, far = create_link()
        self.runners: list[Any] = []
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(attach_link(far),), daemon=True)
        self.thread.start()

    def _run(self, far: Link) -> None:
        try:
            serve(far, self._load)
        except BaseException as error:
            self.error = error
        finally:
            far.close()

    def _load(self, load: Load) -> Runner:
        runner: Runner = ARITHMETIC["load_runner"](load)
        self.runners.append(runner)
        return runner

    def hear(self) -> Any:
        return self.near.wait(30)

    def ended(self) -> bool:
        self.thread.join(30)
        return not self.thread.is_alive()


@pytest.fixture
def served() -> Iterator[Served]:
    far_end = Served()
    yield far_end
    far_end.near.close()
    assert far_end.ended()


def step(number: int, epoch: int = 1, tokens: list[int] | None = None, count: int = 1) -> Step:
    """Step `number` on row 0, which gets `tokens` first if there are any."""
    known = np.array(tokens or [], dtype=np.int32).tobytes()
    row = NewRow(0, RequestId(1), known, len(tokens or []), 0, (b"",), SamplingParams(), 0)
    columns = np.array([0], dtype=np.int32), np.array([len(tokens) if tokens else count], dtype=np.int32)
    return Step(number, epoch, *columns, EMPTY, (row,) if tokens else ())


def next_token(tokens: list[int]) -> int:
    """The arithmetic of the executor, as its docstring states it."""
    return (31 * sum(tokens) + len(tokens)) % 997


# --- the loop ------------------------------------------------------------------------------------------------------


def test_it_loads_answers_every_step_and_leaves_when_told(served: Served) -> None:
    served.near.send(Load({"fingerprint": "abc"}, rank=2, ranks=4))
    handshake = served.hear()
    assert isinstance(handshake, Handshake)
    assert (handshake.fingerprint, handshake.rank) == ("abc", 2)
    served.near.send(step(1, tokens=[3, 4]))
    served.near.send(step(2))
    first, second = served.hear(), served.hear()
    assert (first.number, first.tokens.tolist()) == (1, [next_token([3, 4])])
    assert (second.number, second.tokens.tolist()) == (2, [next_token([3, 4, next_token([3, 4])])])
    served.near.send(Shutdown())
    assert served.ended()
    assert served.error is None
    assert served.runners[0].is_closed


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"load_error": "UsageError"}, LoadFailed("UsageError", "this is a UsageError")),
        ({"load_error": "ModelError"}, LoadFailed("ModelError", "this is a ModelError")),
        (
            {"load_error": "FormatError"},
            LoadFailed("FormatError", "model.gguf: token_embd.weight: the file ends before it"),
        ),
    ],
)
def test_a_load_that_fails_for_a_known_reason_is_told_in_one_line_without_a_traceback(
    served: Served, settings: dict[str, Any], answer: LoadFailed, capfd: pytest.CaptureFixture[str]
) -> None:
    served.near.send(Load(settings))
    assert served.hear() == answer
    assert served.ended()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", ["MemoryError", "ENOMEM", "torch"])
def test_a_load_for_which_there_is_no_memory_says_what_to_lower(
    served: Served, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    served.near.send(Load({"load_error": kind}))
    answer = served.hear()
    assert isinstance(answer, LoadFailed)
    assert "too little memory" in answer.reason
    assert "lower --num-kv-blocks or --kv-cache-bytes" in answer.reason
    assert served.ended()
    assert capfd.readouterr().err == ""


def test_a_load_that_fails_for_an_unknown_reason_shows_its_traceback_and_is_told_in_one_line(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    served.near.send(Load({"load_error": "ValueError"}))
    assert served.hear() == LoadFailed("ExecutorError", "loading failed with ValueError: nobody foresaw this")
    assert served.ended()
    assert "Traceback" in capfd.readouterr().err


def test_a_step_that_raises_ends_its_epoch_and_the_next_one_starts_with_no_rows(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    served.near.send(Load({"raise_at": 2}))
    served.hear()
    for message in (step(1, tokens=[1]), step(2), step(3), step(4), step(5, epoch=2, tokens=[8])):
        served.near.send(message)
    assert served.hear().number == 1
    assert served.hear() == StepFailed(2, 1, "ArithmeticError: the sum is wrong")
    done = served.hear()
    assert (done.number, done.epoch, done.tokens.tolist()) == (5, 2, [next_token([8])])
    assert "ArithmeticError" in capfd.readouterr().err
    served.near.send(step(6, epoch=1))  # a straggler of the dead epoch
    served.near.send(step(7, epoch=2))
    assert served.hear().number == 7


def test_it_leaves_and_closes_its_runner_when_the_near_end_is_gone(served: Served) -> None:
    served.near.send(Load({}))
    assert isinstance(served.hear(), Handshake)
    served.near.close()
    assert served.ended()
    assert served.error is None
    assert served.runners[0].is_closed


@pytest.mark.parametrize("first", [None, Shutdown()])
def test_it_leaves_quietly_when_there_is_nothing_to_load(first: Shutdown | None) -> None:
    far_end = Served()
    if first is not None:
        far_end.near.send(first)
        assert far_end.ended()
    far_end.near.close()
    assert far_end.ended()
    assert far_end.error is None


def test_a_message_out_of_place_is_an_error_and_not_a_guess() -> None:
    for loaded in (False, True):
        far_end = Served()
        if loaded:
            far_end.near.send(Load({}))
            far_end.hear()
            far_end.near.send(Load({}))
        else:
            far_end.near.send(step(1, tokens=[1]))
        assert far_end.ended()
        assert isinstance(far_end.error, ProtocolError)
        far_end.near.close()


def test_errors_are_told_on_one_line_of_bounded_length() -> None:
    assert one_line(ValueError("two\n  lines")) == "two lines"
    assert one_line(ValueError("x" * 5000)) == "x" * 1000 + " ..."


# --- the tether ----------------------------------------------------------------------------------------------------

TETHERED = """
import os, select, sys
from asyncpage.pipes.tether import tie_to_parent
tie_to_parent(int(sys.argv[1]), int(sys.argv[2]))
print("tied", flush=True)
select.select([], [], [])
"""


def tethered(parent_pid: int, lifeline_fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", TETHERED, str(parent_pid), str(lifeline_fd)],
        pass_fds=(lifeline_fd,),
        stdout=subprocess.PIPE,
    )


def test_a_child_whose_parent_was_gone_before_it_asked_leaves_at_once() -> None:
    near, far = socket.socketpair()
    with near, far, tethered(os.getpid() + 1, far.fileno()) as child:
        assert child.stdout is not None
        assert child.stdout.read() == b""
        assert child.wait(30) == 1


def test_a_tied_child_leaves_when_its_lifeline_is_cut_and_not_for_ctrl_c_or_a_service_manager() -> None:
    near, far = socket.socketpair()
    with near, far, tethered(os.getpid(), far.fileno()) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"tied\n"
        os.kill(child.pid, signal.SIGINT)
        os.kill(child.pid, signal.SIGTERM)
        far.close()
        near.close()
        assert child.wait(30) == 1  # not -SIGINT, not -SIGTERM


def test_a_tied_child_dies_with_its_parent_even_when_its_lifeline_lives() -> None:
    near, far = socket.socketpair()
    report, write_end = os.pipe()
    with near, far:

        def parent() -> None:
            child = tethered(os.getpid(), far.fileno())
            assert child.stdout is not None
            child.stdout.readline()
            os.write(write_end, b"%d" % child.pid)
            select.select([], [], [])

        parent_pid = forked(parent)
        child_pid = int(os.read(report, 100))
        pidfd = os.pidfd_open(child_pid)
        os.kill(parent_pid, signal.SIGKILL)
        os.waitpid(parent_pid, 0)
        assert select.select([pidfd], [], [], 30)[0] == [pidfd]
        for fd in (pidfd, report, write_end):
            os.close(fd)


def test_nothing_heavy_is_imported_before_the_tether() -> None:
    code = "import sys; import asyncpage.executor.__main__; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "asyncpage.pipes.tether" in loaded
    assert not {"numpy", "torch", "msgpack", "asyncio", "asyncpage.messages"} & set(loaded)


# --- the whole process ---------------------------------------------------------------------------------------------


def forked(work: Callable[[], None]) -> int:
    """A process that does `work`; its pid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads elsewhere in the test run
        pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def living(session: int) -> set[int]:
    """Processes of a session, from their fork on, without those that are dead and wait for their parent."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                state, _, _, its_session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            except (OSError, ValueError):  # gone in between
                continue
            if int(its_session) == session and state != "Z":
                found.add(int(folder.name))
    return found


@pytest.mark.parametrize("delay_ms", [0, 1, 4, 16, 48, 96, 160, 256, 400, 640, "loaded"])
def test_a_parent_killed_at_any_moment_of_the_start_leaves_no_process(delay_ms: int | str) -> None:
    report, write_end = os.pipe()

    def parent() -> None:
        os.setsid()
        os.close(report)
        os.write(write_end, b"launching")
        running = ProcessLauncher((str(MAIN),)).launch(Load({}))
        if delay_ms == "loaded":
            running.link.wait(None)
            os.write(write_end, b"loaded")
        select.select([], [], [])

    pid = forked(parent)
    os.close(write_end)
    os.read(report, 9)
    if isinstance(delay_ms, int):
        select.select([], [], [], delay_ms / 1000)  # a moment of the start, whichever it is on this machine
    else:
        assert os.read(report, 6) == b"loaded"
        assert len(living(pid)) == 2
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(report)
    give_up = time.monotonic() + 20
    while living(pid) and time.monotonic() < give_up:
        select.select([], [], [], 0.02)
    assert living(pid) == set()


def test_the_executors_environment_is_set_for_speed_and_the_users_own_settings_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "77")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    running = ProcessLauncher((str(MAIN),)).launch(Load({}))
    assert isinstance(running.link.wait(30), Handshake)
    environment = Path(f"/proc/{running.pid}/environ").read_bytes().split(b"\0")
    running.kill()
    assert "was killed by SIGKILL" in running.wait()
    assert {b"GOMP_SPINCOUNT=77", b"OMP_WAIT_POLICY=passive", b"MALLOC_MMAP_THRESHOLD_=2000000000"} <= set(environment)


def test_a_file_in_the_working_folder_does_not_stand_in_for_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('the wrong numpy')")
    monkeypatch.chdir(tmp_path)
    running = ProcessLauncher((str(MAIN),)).launch(Load({}))
    assert isinstance(running.link.wait(30), Handshake)
    running.link.send(Shutdown())
    assert "exited with code 0" in running.wait()


def test_the_answers_of_a_whole_process_are_the_models() -> None:
    running = ProcessLauncher((str(MAIN),)).launch(Load({}))
    assert isinstance(running.link.wait(30), Handshake)
    running.link.send(step(1, tokens=[2, 3]))
    done = running.link.wait(30)
    assert isinstance(done, StepDone)
    assert done.tokens.tolist() == [next_token([2, 3])]
    running.link.send(Shutdown())
    assert "exited with code 0" in running.wait()
