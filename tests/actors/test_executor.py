"""The executor's near end against real executor processes (and threads) that do arithmetic, on a fake clock."""

from __future__ import annotations

import asyncio
import os
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import uvloop
from structlog.testing import capture_logs

from asyncpage.actors.base import ActorCell
from asyncpage.actors.executor import ExecutorActor
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import AsyncpageError, ExecutorError, ModelError, ProtocolError, UsageError
from asyncpage.executor.process import serve
from asyncpage.messages import (
    EMPTY,
    Constraint,
    ExecutorGone,
    ExecutorLost,
    ExecutorReady,
    LearnVocabulary,
    Load,
    NewRow,
    RequestId,
    Shutdown,
    Step,
    StepDone,
    StepFailed,
)
from asyncpage.pipes.launcher import Launcher, ProcessLauncher, Running, RunningProcess, ThreadLauncher
from asyncpage.pipes.link import Link, attach_link, create_link
from asyncpage.pipes.mailbox import Mailbox
from asyncpage.testing.clock import FakeClock

MAIN = Path(__file__).parents[1] / "executor" / "arithmetic_executor.py"
ARITHMETIC = runpy.run_path(str(MAIN))

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Log events are kept from the terminal, where tracebacks are slow to draw."""
    with capture_logs():
        yield


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def go(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(main, 60))

    return go


class Scheduler:
    """What the scheduler would get, in order."""

    def __init__(self) -> None:
        self._got: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, message: object) -> None:
        self._got.put_nowait(message)

    async def next(self) -> Any:
        return await self._got.get()

    def is_empty(self) -> bool:
        return self._got.empty()


class Forked:
    """What `RunningProcess` needs of a `Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def kill(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code


class ForkLauncher:
    """Real processes without the time that a fresh interpreter takes; `ProcessLauncher` has its own tests below."""

    def launch(self, load: Load) -> Running:
        link, far = create_link()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads elsewhere in the test run
            pid = os.fork()
        if pid == 0:
            kept = {0, 1, 2, *far.fds}
            for fd in open_descriptors():
                if int(fd) not in kept:
                    with suppress(OSError):
                        os.close(int(fd))
            sys.stderr = os.fdopen(2, "w", closefd=False)
            with suppress(BaseException):
                serve(attach_link(far), ARITHMETIC["load_runner"])
            os._exit(0)
        far.close()
        running = RunningProcess(cast("subprocess.Popen[bytes]", Forked(pid)), link)
        link.send(load)
        return running


class Varying:
    """A launcher whose n-th launch gets the n-th changes to the settings; the last ones stay."""

    def __init__(self, *changes: dict[str, Any], launcher: Launcher | None = None) -> None:
        self.changes = list(changes)
        self.loads: list[Load] = []
        self.launched: list[Running] = []
        self._launcher = launcher or ForkLauncher()
        self._events = [asyncio.Event() for _ in range(100)]

    def launch(self, load: Load) -> Running:
        change = self.changes.pop(0) if len(self.changes) > 1 else self.changes[0]
        if "cannot_start" in change:
            raise OSError("no process to be had")
        self.loads.append(load)
        running = self._launcher.launch(replace(load, settings={**load.settings, **change}))
        self.launched.append(running)
        self._events[len(self.launched) - 1].set()
        return running

    async def launch_number(self, count: int) -> Running:
        """Waits until that many have been launched; the last of them."""
        await self._events[count - 1].wait()
        return self.launched[count - 1]


class House:
    def __init__(self, launcher: Launcher, **limits: Any) -> None:
        self.scheduler = Scheduler()
        self.clock = FakeClock()
        self.mailbox = Mailbox("executor", 100)
        settings = {"num_kv_blocks": None, "kv_cache_bytes": None}
        limits = {"load_timeout_s": 300.0, "step_timeout_s": 120.0, "max_restarts": 5, **limits}
        self.actor = ExecutorActor(launcher, Load(settings), self.scheduler, self.clock, **limits)
        self.number = 0

    def step(self, epoch: int, *, added: tuple[NewRow, ...] = (), row: int = 0, count: int = 1) -> int:
        """Send the next step: `count` tokens of `row`."""
        self.number += 1
        columns = np.array([row], dtype=np.int32), np.array([count], dtype=np.int32)
        self.mailbox.send(Step(self.number, epoch, *columns, EMPTY, added))
        return self.number

    def begin(self, epoch: int, tokens: list[int]) -> int:
        """Send a step that puts `tokens` into row 0 and computes them."""
        return self.step(epoch, added=(new_row(tokens),), count=len(tokens))

    async def answer(self) -> int:
        """The one token of the step that must come back now."""
        done = await self.scheduler.next()
        assert isinstance(done, StepDone), done
        assert done.number == self.number
        return int(done.tokens[0])

    async def deaths(self, running: Running) -> None:
        """Wait until the loop has seen the sentinel's news."""
        await until(lambda: self.actor.pid != running.pid)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until it has brought about what is on its way."""
    while not condition():  # noqa: ASYNC110 (the conditions are an actor's state, which signals nobody)
        await asyncio.sleep(0)


@asynccontextmanager
async def lived_in(house: House) -> AsyncIterator[House]:
    await house.actor.launch_first()
    cell = ActorCell(house.actor, house.mailbox, house.clock)
    task = asyncio.create_task(cell.run())
    try:
        yield house
    finally:
        cell.stop()
        await task


def new_row(tokens: list[int]) -> NewRow:
    known = np.array(tokens, dtype=np.int32).tobytes()
    return NewRow(0, RequestId(1), known, len(tokens), 0, (b"",), SamplingParams(), 0)


def next_token(tokens: list[int]) -> int:
    """The arithmetic of the executor, as its docstring states it."""
    return (31 * sum(tokens) + len(tokens)) % 997


def exists(pid: int) -> bool:
    """Whether a process, or an unreaped one, has this id."""
    return Path(f"/proc/{pid}").exists()


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def thread_launcher() -> ThreadLauncher:
    def main(link: Link) -> None:
        serve(link, ARITHMETIC["load_runner"])

    return ThreadLauncher(main)


@pytest.mark.parametrize("has_pidfd", [True, False], ids=["pidfd", "lifeline"])
def test_a_spawned_executor_works_is_replaced_and_leaves_nothing(
    run: Run, has_pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open")

    async def main() -> None:
        before = open_descriptors()
        launcher = Varying({}, launcher=ProcessLauncher((str(MAIN),)))
        async with lived_in(House(launcher)) as house:
            house.begin(1, [1, 2])
            assert await house.answer() == next_token([1, 2])
            os.kill(launcher.launched[0].pid, signal.SIGKILL)
            lost = await house.scheduler.next()
            assert isinstance(lost, ExecutorLost)
            assert "was killed by SIGKILL" in lost.reason
            assert await house.scheduler.next() == ExecutorReady(2)
            house.begin(2, [3])
            assert await house.answer() == next_token([3])
        assert not any(exists(running.pid) for running in launcher.launched)
        assert open_descriptors() == before

    run(main())


# --- working ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_early", [True, False], ids=["before the executor", "after it"])
def test_each_executor_is_told_of_a_grammar_before_the_first_row_that_follows_it(run: Run, is_early: bool) -> None:
    async def main() -> None:
        launcher = Varying({})
        house = House(launcher)
        vocabulary = LearnVocabulary(b"ab", np.array([1, 1], dtype=np.int32))
        if is_early:
            house.mailbox.send(vocabulary)
        row = replace(new_row([1, 2]), constraint=Constraint(b"digest", bytes(3_000_000)))  # more than the ring holds
        async with lived_in(house):
            if not is_early:
                house.mailbox.send(vocabulary)
            for epoch in (1, 2):  # the arithmetic raises where a row names what it was not told
                house.step(epoch, added=(row,), count=2)
                assert await house.answer() == next_token([1, 2])
                if epoch == 1:
                    os.kill(launcher.launched[0].pid, signal.SIGKILL)
                    assert isinstance(await house.scheduler.next(), ExecutorLost)
                    assert await house.scheduler.next() == ExecutorReady(2)

    run(main())


@pytest.mark.parametrize("placement", ["process", "thread"])
def test_steps_are_answered_by_the_executor_with_the_models_tokens(run: Run, placement: str) -> None:
    async def main() -> None:
        launcher = ForkLauncher() if placement == "process" else thread_launcher()
        async with lived_in(House(launcher)) as house:
            known = [5, 7, 11]
            house.begin(1, known)
            for _ in range(20):
                known.append(await house.answer())
                house.step(1)
            known.append(await house.answer())
            for at in range(3, len(known)):
                assert known[at] == next_token(known[:at])
            assert house.actor.stats()["steps"] == 21
            assert house.clock.armed() == ()  # an idle executor has no deadline

    run(main())


def test_two_steps_in_flight_come_back_in_order(run: Run) -> None:
    async def main() -> None:
        async with lived_in(House(ForkLauncher())) as house:
            house.begin(1, [1, 2, 3])
            house.step(1)
            assert [(await house.scheduler.next()).number for _ in range(2)] == [1, 2]

    run(main())


def test_the_executor_leaves_when_its_actor_closes_and_nothing_of_it_remains(run: Run) -> None:
    async def main() -> None:
        before = open_descriptors()
        for launcher in (ForkLauncher(), thread_launcher()):
            async with lived_in(House(launcher)) as house:
                pid = house.actor.pid
            assert pid is not None
            assert pid == os.getpid() or not exists(pid)
            assert house.scheduler.is_empty()
            assert house.clock.armed() == ()
            assert open_descriptors() == before

    run(main())


def test_an_executor_told_to_leave_is_not_mourned(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({})
        async with lived_in(House(launcher)) as house:
            house.mailbox.send(Shutdown())
            await until(lambda: house.actor.state == "closed")
        assert house.scheduler.is_empty()
        assert len(launcher.launched) == 1

    run(main())


def test_an_executor_that_ignores_its_leave_is_killed_after_the_grace(run: Run) -> None:
    async def main() -> None:
        house = House(ForkLauncher())
        await house.actor.launch_first()
        cell = ActorCell(house.actor, house.mailbox, house.clock)
        task = asyncio.create_task(cell.run())
        pid = house.actor.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(0)
        cell.stop()
        await until(house.clock.armed)
        assert exists(pid)
        house.clock.advance(2.0)
        await task
        assert not exists(pid)

    run(main())


# --- loading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"load_error": "UsageError"}, UsageError, "this is a UsageError"),
        ({"load_error": "ModelError"}, ModelError, "this is a ModelError"),
        ({"load_error": "FormatError"}, ModelError, "model.gguf: token_embd.weight: the file ends before it"),
        ({"load_error": "ExecutorError"}, ExecutorError, "this is a ExecutorError"),
        ({"load_error": "ValueError"}, ExecutorError, "loading failed with ValueError: nobody foresaw this"),
        ({"exit_in_load": True}, ExecutorError, "exited with code 4"),
        ({"cannot_start": True}, ExecutorError, "no process to be had"),
    ],
)
def test_a_first_load_that_fails_raises_the_executors_own_error(
    run: Run, change: dict[str, Any], error: type[AsyncpageError], text: str
) -> None:
    async def main() -> None:
        before = open_descriptors()
        launcher = Varying(change)
        with pytest.raises(error, match=text):
            await House(launcher).actor.launch_first()
        assert not any(exists(running.pid) for running in launcher.launched)
        assert open_descriptors() == before

    run(main())


def test_a_first_load_that_takes_too_long_is_killed_and_says_which_setting(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({"hang_in_load": True})
        house = House(launcher, load_timeout_s=30.0)
        loading = asyncio.create_task(house.actor.launch_first())
        running = await launcher.launch_number(1)
        house.clock.advance(29.9)
        await asyncio.sleep(0)
        assert not loading.done()
        house.clock.advance(0.1)
        with pytest.raises(ExecutorError, match="--load-timeout-s 30"):
            await loading
        assert not exists(running.pid)

    run(main())


def test_a_first_load_that_is_cancelled_leaves_no_process(run: Run) -> None:
    async def main() -> None:
        before = open_descriptors()
        launcher = Varying({"hang_in_load": True})
        loading = asyncio.create_task(House(launcher).actor.launch_first())
        running = await launcher.launch_number(1)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert not exists(running.pid)
        assert open_descriptors() == before

    run(main())


def test_an_executor_killed_in_its_first_load_is_told_with_the_signal(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({"hang_in_load": True})
        loading = asyncio.create_task(House(launcher).actor.launch_first())
        os.kill((await launcher.launch_number(1)).pid, signal.SIGKILL)
        with pytest.raises(ExecutorError, match="was killed by SIGKILL"):
            await loading

    run(main())


# --- loss -------------------------------------------------------------------------------------------------------------


def test_an_idle_executor_that_is_killed_is_lost_once_and_replaced(run: Run) -> None:
    async def main() -> None:
        async with lived_in(House(ForkLauncher())) as house:
            first = house.actor.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            lost = await house.scheduler.next()
            assert isinstance(lost, ExecutorLost)
            assert lost.epoch == 1
            assert "SIGKILL" in lost.reason
            assert await house.scheduler.next() == ExecutorReady(2)
            assert not exists(first)
            house.begin(2, [1, 2])
            assert await house.answer() == next_token([1, 2])
            assert house.scheduler.is_empty()

    run(main())


def test_an_executor_that_dies_between_its_load_and_the_start_of_its_actor_is_lost(run: Run) -> None:
    async def main() -> None:
        house = House(ForkLauncher())
        await house.actor.launch_first()
        assert house.actor.pid is not None
        os.kill(house.actor.pid, signal.SIGKILL)
        cell = ActorCell(house.actor, house.mailbox, house.clock)
        task = asyncio.create_task(cell.run())
        assert isinstance(await house.scheduler.next(), ExecutorLost)
        assert await house.scheduler.next() == ExecutorReady(2)
        cell.stop()
        await task

    run(main())


def test_an_executor_killed_in_a_step_never_answers_it_and_its_successor_starts_afresh(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({"hang_at": 2}, {})
        async with lived_in(House(launcher)) as house:
            house.begin(1, [1, 2])
            await house.answer()
            house.step(1)
            house.step(1)
            os.kill(launcher.launched[0].pid, signal.SIGKILL)
            assert isinstance(await house.scheduler.next(), ExecutorLost)
            assert await house.scheduler.next() == ExecutorReady(2)
            house.begin(2, [4, 4])
            assert await house.answer() == next_token([4, 4])

    run(main())


def test_answers_sent_before_the_death_still_count_and_come_before_the_loss(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({"exit_at": 2}, {})
        async with lived_in(House(launcher)) as house:
            house.begin(1, [1, 2])
            house.step(1)
            done, lost = await house.scheduler.next(), await house.scheduler.next()
            assert (done.number, done.tokens.tolist()) == (1, [next_token([1, 2])])
            assert isinstance(lost, ExecutorLost)
            assert "exited with code 3" in lost.reason

    run(main())


def test_a_hung_executor_is_killed_at_the_steps_deadline_and_not_before(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({})
        async with lived_in(House(launcher, step_timeout_s=10.0)) as house:
            house.begin(1, [1, 2])
            await house.answer()
            first = launcher.launched[0]
            os.kill(first.pid, signal.SIGSTOP)
            house.clock.advance(1000.0)  # idle: nothing is due
            house.step(1)
            await until(house.clock.armed)
            house.clock.advance(9.9)
            assert house.actor.state == "ready"
            house.clock.advance(0.1)
            lost = await house.scheduler.next()
            assert isinstance(lost, ExecutorLost)
            assert "--step-timeout-s 10" in lost.reason
            assert await house.scheduler.next() == ExecutorReady(2)
            assert not exists(first.pid)

    run(main())


def test_each_step_in_flight_gets_its_own_time(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({"hang_at": 2}, {})
        async with lived_in(House(launcher, step_timeout_s=10.0)) as house:
            house.begin(1, [1, 2])
            house.step(1)
            await until(house.clock.armed)
            house.clock.advance(9.0)
            done = await house.scheduler.next()
            assert isinstance(done, StepDone) or "--step-timeout-s" not in done.reason
            house.clock.advance(9.0)
            assert house.actor.state == "ready"
            house.clock.advance(1.0)
            assert isinstance(await house.scheduler.next(), ExecutorLost)

    run(main())


@pytest.mark.parametrize(
    ("change", "text"),
    [({"lie_at": 1}, r"answered step \(1, -1\)"), ({"exit_at": 1}, "exited with code 3")],
)
def test_an_executor_that_breaks_the_protocol_or_exits_is_lost(run: Run, change: dict[str, Any], text: str) -> None:
    async def main() -> None:
        async with lived_in(House(Varying(change, {}))) as house:
            house.begin(1, [1])
            lost = await house.scheduler.next()
            with pytest.raises(ExecutorError, match=text):
                raise ExecutorError(lost.reason)
            assert await house.scheduler.next() == ExecutorReady(2)

    run(main())


def test_steps_for_a_lost_executor_are_dropped_and_do_not_reach_its_successor(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({}, {"hang_in_load": True}, {})
        async with lived_in(House(launcher)) as house:
            house.begin(1, [1, 2])
            await house.answer()
            os.kill(launcher.launched[0].pid, signal.SIGKILL)
            assert isinstance(await house.scheduler.next(), ExecutorLost)
            second = await launcher.launch_number(2)
            house.step(1)
            os.kill(second.pid, signal.SIGKILL)
            await house.deaths(second)
            house.step(1)
            house.clock.advance(0.5)
            assert await house.scheduler.next() == ExecutorReady(2)
            house.step(1)  # a straggler
            house.begin(2, [3])
            assert await house.answer() == next_token([3])
            assert house.actor.stats()["dropped_steps"] == 3

    run(main())


def test_a_failed_step_drops_the_rest_of_its_epoch_and_the_next_epoch_runs_in_the_same_process(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({"raise_at": 2})
        async with lived_in(House(launcher)) as house:
            house.begin(1, [1, 2])
            await house.answer()
            house.step(1)
            house.step(1)
            failed = await house.scheduler.next()
            assert failed == StepFailed(2, 1, "ArithmeticError: the sum is wrong")
            house.step(1)  # sent before the failure was read
            house.begin(2, [9])
            assert await house.answer() == next_token([9])
            assert len(launcher.launched) == 1
            assert house.clock.armed() == ()

    run(main())


def test_a_loss_after_a_failed_step_has_an_epoch_beyond_the_one_the_scheduler_moved_to(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({"raise_at": 1}, {})
        async with lived_in(House(launcher)) as house:
            house.begin(1, [1, 2])
            assert isinstance(await house.scheduler.next(), StepFailed)
            os.kill(launcher.launched[0].pid, signal.SIGKILL)
            lost = await house.scheduler.next()
            assert (type(lost), lost.epoch) == (ExecutorLost, 2)
            assert await house.scheduler.next() == ExecutorReady(3)

    run(main())


def test_a_link_that_breaks_is_one_loss_however_often_it_is_looked_at(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        launcher = Varying({})
        async with lived_in(House(launcher)) as house:
            first = launcher.launched[0].link
            whole = type(first).acknowledge

            def acknowledge(link: Link) -> None:
                if link is first:
                    raise ProtocolError("ring head is 7")
                whole(link)

            monkeypatch.setattr(type(first), "acknowledge", acknowledge)
            house.begin(1, [1, 2])
            assert isinstance(await house.scheduler.next(), ExecutorLost)
            assert await house.scheduler.next() == ExecutorReady(2)
            assert house.actor.stats()["losses"] == 1

    run(main())


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_restarts_back_off_and_a_spent_budget_is_told_once(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({}, {"exit_in_load": True})
        async with lived_in(House(launcher, max_restarts=4)) as house:
            os.kill(launcher.launched[0].pid, signal.SIGKILL)
            assert isinstance(await house.scheduler.next(), ExecutorLost)
            waits: list[float] = []
            for count in (2, 3, 4, 5):
                await house.deaths(await launcher.launch_number(count))
                if count < 5:
                    waits += house.clock.armed()
                    house.clock.advance(waits[-1])
            assert waits == [0.5, 1.0, 2.0]
            gone = await house.scheduler.next()
            assert isinstance(gone, ExecutorGone)
            assert "lost 5 times" in gone.reason
            assert "--max-restarts is 4" in gone.reason
            assert "exited with code 4" in gone.reason
            house.clock.advance(1000.0)
            assert house.scheduler.is_empty()
            assert (len(launcher.launched), house.actor.state) == (5, "gone")

    run(main())


def test_a_finished_step_restores_the_budget(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({})
        async with lived_in(House(launcher, max_restarts=1)) as house:
            for epoch in range(1, 6):
                house.begin(epoch, [epoch])
                assert await house.answer() == next_token([epoch])
                os.kill(launcher.launched[-1].pid, signal.SIGKILL)
                assert isinstance(await house.scheduler.next(), ExecutorLost)
                assert await house.scheduler.next() == ExecutorReady(epoch + 1)

    run(main())


def test_without_restarts_the_first_loss_is_the_end(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({})
        async with lived_in(House(launcher, max_restarts=0)) as house:
            os.kill(launcher.launched[0].pid, signal.SIGKILL)
            assert isinstance(await house.scheduler.next(), ExecutorLost)
            assert isinstance(await house.scheduler.next(), ExecutorGone)

    run(main())


def test_a_restart_that_finds_no_process_to_be_had_is_tried_again(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({}, {"cannot_start": True}, {})
        async with lived_in(House(launcher)) as house:
            first = launcher.launched[0]
            os.kill(first.pid, signal.SIGKILL)
            assert isinstance(await house.scheduler.next(), ExecutorLost)
            await house.deaths(first)
            house.clock.advance(0.5)
            assert await house.scheduler.next() == ExecutorReady(2)

    run(main())


def test_a_restarted_load_that_hangs_is_killed_and_tried_again(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({}, {"hang_in_load": True}, {})
        async with lived_in(House(launcher, load_timeout_s=30.0)) as house:
            os.kill(launcher.launched[0].pid, signal.SIGKILL)
            assert isinstance(await house.scheduler.next(), ExecutorLost)
            second = await launcher.launch_number(2)
            house.clock.advance(30.0)
            await house.deaths(second)
            house.clock.advance(0.5)
            assert await house.scheduler.next() == ExecutorReady(2)
            assert not exists(second.pid)

    run(main())


def test_a_successor_with_another_model_is_refused_and_nothing_runs_again(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({}, {"fingerprint": "something else"})
        async with lived_in(House(launcher)) as house:
            os.kill(launcher.launched[0].pid, signal.SIGKILL)
            assert isinstance(await house.scheduler.next(), ExecutorLost)
            gone = await house.scheduler.next()
            assert isinstance(gone, ExecutorGone)
            assert "fingerprint was arithmetic, is something else" in gone.reason
            assert not exists(launcher.launched[1].pid)

    run(main())


def test_a_successor_is_told_to_make_the_same_number_of_blocks(run: Run) -> None:
    async def main() -> None:
        launcher = Varying({"num_kv_blocks": 77}, {})
        async with lived_in(House(launcher)) as house:
            os.kill(launcher.launched[0].pid, signal.SIGKILL)
            assert isinstance(await house.scheduler.next(), ExecutorLost)
            assert await house.scheduler.next() == ExecutorReady(2)
            assert launcher.loads[1].settings == {"num_kv_blocks": 77, "kv_cache_bytes": None}

    run(main())


@pytest.mark.parametrize("placement", ["process", "thread"])
def test_twenty_losses_leave_no_process_no_thread_and_no_descriptor(run: Run, placement: str) -> None:
    async def main() -> None:
        before = open_descriptors()
        launcher = Varying({}, launcher=None if placement == "process" else thread_launcher())
        async with lived_in(House(launcher)) as house:
            house.begin(1, [1])
            await house.answer()
            during = len(open_descriptors())
            for epoch in range(2, 22):
                launcher.launched[-1].kill()
                assert isinstance(await house.scheduler.next(), ExecutorLost)
                assert await house.scheduler.next() == ExecutorReady(epoch)
                house.begin(epoch, [epoch])
                await house.answer()
                assert len(open_descriptors()) == during
        assert open_descriptors() == before
        if placement == "process":
            assert not any(exists(running.pid) for running in launcher.launched)

    run(main())


def test_an_executor_that_survives_its_killing_ends_all_waiting(run: Run) -> None:
    class Unkillable:
        """A process in the kernel's hands: SIGKILL has no effect on it yet."""

        def __init__(self, running: Running) -> None:
            self._running = running
            self.link, self.sentinel_fd, self.pid = running.link, running.sentinel_fd, running.pid
            self.wait = running.wait
            self.is_mortal = False

        def kill(self) -> None:
            if self.is_mortal:
                self._running.kill()

    class Unkillables:
        def launch(self, load: Load) -> Unkillable:
            self.last = Unkillable(ForkLauncher().launch(replace(load, settings={"hang_at": 1})))
            return self.last

    async def main() -> None:
        launcher = Unkillables()
        async with lived_in(House(launcher, step_timeout_s=10.0)) as house:
            house.begin(1, [1])
            await until(house.clock.armed)
            house.clock.advance(10.0)
            assert isinstance(await house.scheduler.next(), ExecutorLost)
            house.clock.advance(10.0)
            gone = await house.scheduler.next()
            assert isinstance(gone, ExecutorGone)
            assert "did not end within 10 s of being killed" in gone.reason
            launcher.last.is_mortal = True
        assert not exists(launcher.last.pid)

    run(main())
