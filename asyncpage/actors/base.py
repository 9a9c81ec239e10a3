"""The actor runtime: an actor is private state and a synchronous `receive`; its cell turns messages into calls.

Other actors send to its mailbox (`pipes/mailbox.py`); the cell sends `Pong` to the front end that pinged.
One wake-up drains all that waits, then tells the actor that the batch ended, then runs one slice of unfinished work,
then looks into the mailbox again. There is no task and no await per message.

INVARIANT: a message whose handling raised either failed its own request (`Actor.fail` said so) or killed the actor;
no error is swallowed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Union

import structlog

from asyncpage.clock import Clock, Timer
from asyncpage.errors import RequestError
from asyncpage.messages import Handshake, Ping, Pong
from asyncpage.pipes.mailbox import Address, Mailbox

Continuation = Callable[[], Union["Continuation", None]]
"""The rest of a piece of work that was cut at the slice: called behind the mailbox, may return the next rest."""

log = structlog.get_logger("asyncpage.actors")


class Actor:
    """What an actor overrides. All calls come from its cell's loop, one at a time.

    An actor that may be restarted (the supervisor has a factory for it) sends its answers in `receive`; what it
    holds back until `batch_end` is lost with it.
    """

    name: str = "actor"
    _cell: ActorCell | None = None

    def receive(self, message: object) -> Continuation | None:
        """Handle one message. Work longer than the slice returns its rest as a continuation."""
        raise NotImplementedError

    def batch_end(self) -> None:
        """All that waited has been received (or one continuation has run): send now what was gathered."""

    def fail(self, message: object, error: Exception) -> bool:
        """`message` raised `error`: fail its own request and return True. False: the actor dies of it."""
        return False

    def stats(self) -> Mapping[str, float]:
        """Gauges and counters at this moment, for `Pong`."""
        return {}

    def started(self, clock: Clock) -> None:
        """The cell runs on the current loop; no message has been received yet.

        Calls set by this `clock.call_later` are guarded: see `guard`.
        """

    def closed(self) -> Awaitable[None] | None:
        """The cell has ended, by stop or by death: let go of descriptors and processes, awaiting if need be."""
        return None

    def guard(self, callback: Callable[[], None]) -> Callable[[], None]:
        """`callback` as a loop may call it for this actor (a readable descriptor, a timer).

        It runs as a batch of its own: `batch_end` follows, and what it raises kills the actor. Once the cell has
        ended it does nothing.
        """

        def guarded() -> None:
            if self._cell is not None:
                self._cell.run_callback(callback)

        return guarded


class ExecutorEnd(Actor):
    """The actor in the executor's place, as whoever builds the house sees it.

    It takes `Step` and `Shutdown`, and answers every step to the scheduler, in order.
    """

    name = "executor"

    on_gone: Callable[[Exception], None] = staticmethod(lambda error: None)
    """Called once it has given up; the scheduler has been sent `ExecutorGone`."""

    @property
    def state(self) -> str:
        """`ready` while steps are run; `gone` or `closed` when none will be again."""
        raise NotImplementedError

    @property
    def pid(self) -> int | None:
        """The process behind it, None where there is none."""
        raise NotImplementedError

    async def launch_first(self) -> Handshake:
        """Called once, before the cell runs. Errors: whatever keeps it from loading."""
        raise NotImplementedError

    async def closed(self) -> None:
        """The cell has ended, or never ran because the start failed: end what was launched."""


class ActorCell:
    """Runs one actor on the loop that awaits `run`.

    `frontends` is indexed by `Ping.frontend`. After a death, `unfinished` holds the messages whose handling had
    begun and not ended, the fatal one first; messages that nobody has looked at stay in the mailbox.
    """

    def __init__(self, actor: Actor, mailbox: Mailbox, clock: Clock, frontends: Sequence[Address] = ()) -> None:
        self.actor = actor
        self.mailbox = mailbox
        self.unfinished: tuple[object, ...] = ()
        self._inherited: Exception | None = None
        self._clock = clock
        self._frontends = frontends
        # The message stays beside its continuation, so that a late failure still fails the right request.
        self._continuations: deque[tuple[object, Continuation]] = deque()
        self._queue: deque[object] = deque()
        self._ended: asyncio.Future[None] | None = None
        self._is_stopped = False

    def inherit(self, dead: ActorCell, error: Exception) -> None:
        """Before `run`: this actor follows one that died; it fails what that one had begun, then reads on."""
        self.unfinished, self._inherited = dead.unfinished, error

    async def run(self) -> None:
        """Run the actor until `stop`. Errors: whatever the actor died of."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        try:
            if not self._is_stopped:
                self.actor._cell = self
                self.actor.started(_GuardedClock(self._clock, self.actor))
                log.debug("actor.started", actor=self.actor.name)
                self._settle_inheritance()
                self._queue = self.mailbox.bind(loop, self._turn, self._overflowed)
                await self._ended
        finally:
            self.mailbox.unbind()
            self._is_stopped = True
            self._continuations.clear()
            closing = self.actor.closed()
            if closing is not None:
                await closing
            log.debug("actor.stopped", actor=self.actor.name)

    def stop(self) -> None:
        """End `run` in the loop's next turn; messages that still wait are not handled. For callers on its loop."""
        self._is_stopped = True
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def run_callback(self, callback: Callable[[], None]) -> None:
        """Run a loop's callback as the actor's own code: see `Actor.guard`."""
        if self._is_stopped:
            return
        try:
            callback()
            self.actor.batch_end()
        except Exception as error:
            self._die(None, error)

    def _turn(self) -> None:
        if self._is_stopped:
            return
        actor, queue, continuations = self.actor, self._queue, self._continuations
        message: object = None
        try:
            # Only what waits now: what these messages bring about comes in the next turn, after the other actors'.
            for _ in range(len(queue)):
                message = queue.popleft()
                if type(message) is Ping:
                    self._answer(message)
                    continue
                try:
                    rest = actor.receive(message)
                except Exception as error:
                    self._fail(message, error)
                else:
                    if rest is not None:
                        continuations.append((message, rest))
                if self._is_stopped:
                    return
            if message is not None:
                message = None
                actor.batch_end()
            if continuations:
                message, work = continuations.popleft()
                try:
                    rest = work()
                except Exception as error:
                    self._fail(message, error)
                else:
                    if rest is not None:
                        # To the end: long pieces of work take turns, and a short one is not held up by a long one.
                        continuations.append((message, rest))
                message = None
                actor.batch_end()
        except Exception as error:
            self._die(message, error)
            return
        self.mailbox.rest(again=bool(continuations))

    def _settle_inheritance(self) -> None:
        if self._inherited is None:
            return
        for message in self.unfinished:
            if not self.actor.fail(message, self._inherited):
                log.error("message.dropped", actor=self.actor.name, message=type(message).__name__)
        self.unfinished = ()
        self.actor.batch_end()

    def _answer(self, ping: Ping) -> None:
        self._frontends[ping.frontend].send(Pong(ping.token, self.actor.name, self.actor.stats()))

    def _fail(self, message: object, error: Exception) -> None:
        if not self.actor.fail(message, error):
            raise error
        is_clients_fault = isinstance(error, RequestError) and error.failure.status < 500
        tell = log.info if is_clients_fault else log.warning
        tell(
            "message.failed",
            actor=self.actor.name,
            message=type(message).__name__,
            error=type(error).__name__,
            # What a client did wrong is told to the client; its text may quote the prompt, which no log shows.
            exc_info=None if isinstance(error, RequestError) else error,
        )

    def _overflowed(self, error: Exception) -> None:
        self._die(None, error)

    def _die(self, message: object, error: Exception) -> None:
        begun = [message] if message is not None else []
        self.unfinished = (*begun, *(message for message, _ in self._continuations))
        self._is_stopped = True
        self.mailbox.unbind()
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)


class _GuardedClock:
    """The clock that an actor sees: its timers are the actor's own code."""

    def __init__(self, clock: Clock, actor: Actor) -> None:
        self._actor = actor
        self._call_later = clock.call_later
        self.now = clock.now
        self.wall = clock.wall

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._call_later(delay_s, self._actor.guard(callback))
