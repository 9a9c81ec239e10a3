"""The near end of an executor: sends it steps, brings its answers back, and replaces it when it is lost.

The scheduler sends `Step`, the engine `LearnVocabulary`, either of engine and supervisor `Shutdown`; it tells the
scheduler what came of steps and executors. Over the link it speaks with `executor/process.py`.

    loading --Handshake--> ready --loss--> dying --its sentinel--> waiting --backoff--> loading ...
       `------------ timeout, LoadFailed, death -----^    `--budget spent, another model--> gone

INVARIANT: each loss of a ready executor is told by one `ExecutorLost`, after every answer that it had still sent and
before anything of its successor; every `ExecutorLost` is followed by one `ExecutorReady` or `ExecutorGone`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal

import structlog

from asyncpage.actors.base import ExecutorEnd
from asyncpage.clock import Clock, Timer
from asyncpage.core.lessons import Lessons
from asyncpage.core.restart import backoff_s
from asyncpage.core.step_ledger import StepLedger
from asyncpage.core.succession import difference, error_of, load_for_successors
from asyncpage.errors import AsyncpageError, ExecutorError, LinkClosed, ProtocolError, UnknownMessage
from asyncpage.messages import (
    ExecutorGone,
    ExecutorLost,
    ExecutorReady,
    Handshake,
    LearnVocabulary,
    Lesson,
    Load,
    LoadFailed,
    Shutdown,
    Step,
    StepDone,
    StepFailed,
)
from asyncpage.pipes.launcher import BURIAL_S, Launcher, Running, put_down
from asyncpage.pipes.mailbox import Address

log = structlog.get_logger("asyncpage.executor")

GRACE_S = 2.0  # an idle executor leaves in milliseconds; a process manager waits 10 s for all of us

State = Literal["new", "loading", "ready", "dying", "waiting", "gone", "closed"]


class ExecutorActor(ExecutorEnd):
    """One executor, whichever process or thread plays it at the moment.

    `clock` is for the time before the cell runs (`launch_first`) and after it. `max_restarts`: losses in a row,
    without a finished step between, that are survived.
    """

    def __init__(
        self,
        launcher: Launcher,
        load: Load,
        scheduler: Address,
        clock: Clock,
        *,
        load_timeout_s: float,
        step_timeout_s: float,
        max_restarts: int,
    ) -> None:
        self._launcher, self._load, self._scheduler = launcher, load, scheduler
        self._clock = self._own_clock = clock
        self._load_timeout_s = load_timeout_s
        self._step_timeout_s = step_timeout_s
        self._max_restarts = max_restarts
        self._state: State = "new"
        self._running: Running | None = None
        self._handshake: Handshake | None = None
        self._first: asyncio.Future[Handshake] | None = None  # while `launch_first` waits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched_fds: tuple[int, ...] = ()
        self._timer: Timer | None = None  # one is enough: each state waits for one thing
        self._steps = StepLedger()
        self._lessons = Lessons()
        self._losses_in_a_row = 0
        self._reason = ""
        self._verdict: str | None = None  # why there will be no successor
        self._counts = {"losses": 0, "steps": 0, "failed_steps": 0, "dropped_steps": 0, "step_us": 0}

    @property
    def state(self) -> State:
        return self._state

    @property
    def handshake(self) -> Handshake | None:
        """Of the executor that runs or ran last."""
        return self._handshake

    @property
    def pid(self) -> int | None:
        """The process to look at or to kill; None between two of them."""
        return None if self._running is None else self._running.pid

    # --- the first launch ---------------------------------------------------------------------------------------------

    async def launch_first(self) -> Handshake:
        """Start the executor and wait until it has loaded, before the actors run.

        Errors: the executor's own `ModelError` or `UsageError`; `ExecutorError` when it died or took too long.
        """
        self._loop = asyncio.get_running_loop()
        self._first = self._loop.create_future()
        try:
            self._launch()
            handshake = await self._first
        except BaseException as error:
            self._first = None
            await self._put_down(grace_s=0.0)
            if isinstance(error, OSError):
                raise ExecutorError(f"the executor could not be started: {error}") from error
            raise
        self._first = None
        self._unwatch()
        return handshake

    # --- the actor ----------------------------------------------------------------------------------------------------

    def started(self, clock: Clock) -> None:
        if self._state != "ready":
            raise RuntimeError(f"launch_first comes before the cell; the executor is {self._state}")
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._watch()  # a death since the launch makes the sentinel readable at once

    def receive(self, message: object) -> None:
        match message:
            case Step():
                self._send_step(message)
            case LearnVocabulary():
                self._send(*self._lessons.learn(message, is_there=self._state == "ready"))
            case Shutdown():
                self._leave()
            case _:
                raise UnknownMessage(self, message)

    def stats(self) -> Mapping[str, float]:
        crossed = (0, 0) if self._running is None else self._running.link.crossed
        return {
            **self._counts,
            "is_ready": float(self._state == "ready"),
            "losses_in_a_row": float(self._losses_in_a_row),
            "steps_in_flight": float(len(self._steps)),
            "epoch": float(self._steps.epoch),
            **dict(zip(("link_bytes_down", "link_bytes_up"), crossed, strict=True)),
        }

    async def closed(self) -> None:
        is_idle = self._state == "ready" and not self._steps
        self._leave()
        await self._put_down(grace_s=GRACE_S if is_idle else 0.0)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _send_step(self, step: Step) -> None:
        is_current = self._steps.is_current(step.epoch)
        if self._running is None or self._state != "ready" or not is_current:
            # Sent before the scheduler could read of the loss or failure, which tells it that this step is lost too.
            self._counts["dropped_steps"] += 1
            log.debug("step.dropped", step=step.number, epoch=step.epoch, state=self._state)
            return
        if not self._steps:
            self._arm(self._step_timeout_s, self._step_timed_out)
        self._steps.sent(step.epoch, step.number)
        lessons, step = self._lessons.before(step)
        self._send(*lessons, step)

    def _send(self, *messages: Step | Lesson) -> None:
        try:
            for message in messages:
                if self._running is not None:
                    self._running.link.send(message)
        except (LinkClosed, ProtocolError) as error:
            # A step that cannot be encoded is treated as one that killed its executor: the scheduler isolates it.
            self._lose(f"{type(message).__name__} could not be sent: {error}")

    def _finished(self, step: StepDone | StepFailed) -> None:
        due = self._steps.due()
        if not self._steps.answered(step.epoch, step.number):
            self._lose(f"the executor answered step {(step.epoch, step.number)} (epoch, number); due was {due}")
            return
        if isinstance(step, StepDone):
            self._losses_in_a_row = 0
            self._counts["steps"] += 1
            self._counts["step_us"] = step.elapsed_us
        else:
            self._steps.failed(step.epoch)
            self._counts["failed_steps"] += 1
            log.warning("step.failed", step=step.number, epoch=step.epoch, reason=step.reason)
        self._disarm()
        if self._steps:
            self._arm(self._step_timeout_s, self._step_timed_out)
        self._scheduler.send(step)

    def _step_timed_out(self) -> None:
        limit = f"--step-timeout-s {self._step_timeout_s:g}"
        self._lose(f"step {self._steps.due()} (epoch, number) took longer than {limit}; the executor was killed")

    # --- what the link and the sentinel say ---------------------------------------------------------------------------

    def _read(self) -> None:
        if self._running is None or self._state not in ("loading", "ready"):
            return  # it is lost already, and a broken link would be told as a second loss
        link = self._running.link
        try:
            link.acknowledge()
            while self._state in ("loading", "ready") and (message := link.receive()) is not None:
                self._hear(message)
        except (LinkClosed, ProtocolError) as error:
            self._lose(f"the executor's link broke: {error}")

    def _hear(self, message: object) -> None:
        match message, self._state:
            case StepDone() | StepFailed(), "ready":
                self._finished(message)
            case Handshake(), "loading":
                self._loaded(message)
            case LoadFailed(), "loading":
                self._lose(f"the executor could not load: {message.reason}", error_of(message))
            case _:
                self._lose(f"the executor sent {type(message).__name__} while it was {self._state}")

    def _loaded(self, handshake: Handshake) -> None:
        before, self._handshake = self._handshake, handshake
        if before is None:
            self._load = load_for_successors(self._load, handshake)
        elif different := difference(before, handshake):
            self._verdict = f"the restarted executor is another one: {different}; start again to serve it"
            self._lose(self._verdict)
            return
        self._disarm()
        self._state = "ready"
        if handshake.lack:
            log.warning("executor.no_native_code", reason=handshake.lack)
        log.info("executor.loaded", family=handshake.family, load_ms=handshake.load_ms, epoch=self._steps.epoch)
        if self._first is not None:
            self._first.set_result(handshake)
        else:
            self._scheduler.send(ExecutorReady(self._steps.oldest_epoch))

    def _died(self) -> None:
        """The sentinel is readable: what it had sent still counts, then it is reaped."""
        running = self._running
        if running is None:
            return
        self._read()
        self._unwatch()
        ending = running.wait()
        if self._state in ("loading", "ready"):
            self._lose(ending)
        self._running = None
        if self._state == "dying" and self._first is None:
            self._bury()

    # --- loss and return ----------------------------------------------------------------------------------------------

    def _lose(self, reason: str, error: AsyncpageError | None = None) -> None:
        """Tell of the loss and kill what is left; the sentinel says when it is dead (`_died`)."""
        was_ready = self._state == "ready"
        self._state = "dying"
        self._reason = reason
        self._disarm()
        if self._running is not None:
            self._unwatch_link(self._running)
            self._running.kill()
        if self._first is not None:
            if not self._first.done():
                self._first.set_exception(error or ExecutorError(reason))
            return
        self._losses_in_a_row += 1
        self._counts["losses"] += 1
        log.error("executor.lost", reason=reason, epoch=self._steps.epoch, losses_in_a_row=self._losses_in_a_row)
        self._arm(BURIAL_S, self._outlived_its_burial)
        if was_ready:
            self._scheduler.send(ExecutorLost(self._steps.lost(), reason))

    def _outlived_its_burial(self) -> None:
        self._verdict = f"{self._reason}; it did not end within {BURIAL_S:g} s of being killed and may hold its device"
        self._give_up(self._verdict)

    def _bury(self) -> None:
        """It is dead and reaped: a successor, now or after the backoff, or none."""
        self._disarm()
        if self._verdict is None and self._losses_in_a_row > self._max_restarts:
            self._verdict = (
                f"the executor was lost {self._losses_in_a_row} times without a finished step between, "
                f"--max-restarts is {self._max_restarts}; the last time: {self._reason}"
            )
        if self._verdict is not None:
            self._give_up(self._verdict)
            return
        self._state = "waiting"
        wait_s = backoff_s(self._losses_in_a_row)
        if wait_s > 0:
            self._arm(wait_s, self._relaunch)
        else:
            self._relaunch()

    def _relaunch(self) -> None:
        try:
            self._launch()
        except OSError as error:
            self._lose(f"the executor could not be started: {error}")
            self._bury()

    def _give_up(self, reason: str) -> None:
        self._state = "gone"
        log.error("executor.gone", reason=reason)
        self._scheduler.send(ExecutorGone(reason))
        self.on_gone(ExecutorError(reason))

    def _launch(self) -> None:
        self._state = "loading"
        self._lessons.restart()
        self._running = self._launcher.launch(self._load)
        log.info("executor.launched", pid=self._running.pid)
        self._watch()
        self._arm(self._load_timeout_s, self._load_timed_out)

    def _load_timed_out(self) -> None:
        self._lose(f"the executor took longer than --load-timeout-s {self._load_timeout_s:g} to load and was killed")

    # --- leaving ------------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """No successor from now on, and no loss to tell of."""
        self._unwatch()
        self._disarm()
        if self._state == "ready" and self._running is not None:
            try:
                self._running.link.send(Shutdown())
            except LinkClosed:
                log.debug("executor.left", pid=self._running.pid)
        self._state = "closed"

    async def _put_down(self, grace_s: float) -> None:
        self._unwatch()
        self._disarm()
        running, self._running = self._running, None
        if running is not None:
            ending = await put_down(running, self._own_clock, grace_s)
            if ending is None:
                log.error("executor.abandoned", pid=running.pid)
            else:
                log.debug("executor.reaped", ending=ending)

    # --- the loop's side ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._loop is None or self._running is None:
            return
        link_fd, sentinel_fd = self._running.link.wake_fd, self._running.sentinel_fd
        self._loop.add_reader(link_fd, self._guarded(self._read))
        self._loop.add_reader(sentinel_fd, self._guarded(self._died))
        self._watched_fds = (link_fd, sentinel_fd)

    def _unwatch(self) -> None:
        for fd in self._watched_fds:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(fd)
        self._watched_fds = ()

    def _unwatch_link(self, running: Running) -> None:
        """A killed one is of interest for its sentinel alone."""
        if self._loop is not None and running.link.wake_fd in self._watched_fds:
            self._loop.remove_reader(running.link.wake_fd)
            self._watched_fds = (running.sentinel_fd,)

    def _guarded(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Errors in `callback` reach `launch_first` while it waits, and the cell afterwards."""
        first = self._first
        if first is None:
            return self.guard(callback)

        def told() -> None:
            try:
                callback()
            except Exception as error:
                if first.done():
                    raise
                first.set_exception(error)

        return told

    def _arm(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._disarm()
        self._timer = self._clock.call_later(delay_s, callback)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
