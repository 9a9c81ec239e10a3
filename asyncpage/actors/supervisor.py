"""Starts every actor, restarts the stateless ones inside their wrapper, and stops the house when another one dies.

It sends no messages: a death is told by the `on_death` call and by `ActorDied` out of `run`.

INVARIANT: at most one death is reported, before anything is stopped; actors are stopped one after another, the last
started first, each with its `closed` awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from asyncpage.actors.base import Actor, ActorCell
from asyncpage.clock import Clock
from asyncpage.core.restart import backoff_s
from asyncpage.errors import ActorDied
from asyncpage.pipes.mailbox import Address, Mailbox

log = structlog.get_logger("asyncpage.supervisor")

FORGIVEN_AFTER_S = 60.0  # an actor that ran this long died of something new: its earlier deaths do not count


class Supervisor:
    """Owner of the only task group. `add` every actor, then `run` until `stop` or a death."""

    def __init__(self, clock: Clock, on_death: Callable[[str, Exception], None], *, max_restarts: int = 5) -> None:
        self._clock = clock
        self._on_death = on_death
        self._max_restarts = max_restarts
        self._posts: list[_Post] = []
        self._is_running = False
        self._ending = asyncio.Event()
        self._ended = asyncio.Event()
        self.death: tuple[str, Exception] | None = None

    def add(
        self,
        actor: Actor,
        mailbox: Mailbox,
        frontends: Sequence[Address] = (),
        *,
        factory: Callable[[], Actor] | None = None,
    ) -> None:
        """Put `actor` on `mailbox`. With a `factory` it is stateless: after a death a new one reads on."""
        if self._is_running:
            raise RuntimeError(f"{actor.name} must be added before the supervisor runs")
        self._posts.append(_Post(actor, mailbox, frontends, factory))

    async def run(self) -> None:
        """Run every actor. Returns after `stop`. Errors: `ActorDied` with the reason when one could not go on."""
        self._is_running = True
        try:
            if self._ending.is_set():
                for post in reversed(self._posts):
                    post.stop()
                    await self._keep(post)
                return
            async with asyncio.TaskGroup() as group:
                tasks = [(post, group.create_task(self._keep(post), name=post.actor.name)) for post in self._posts]
                await self._ending.wait()
                for post, task in reversed(tasks):
                    post.stop()
                    await asyncio.wait([task])
        finally:
            self._ended.set()
        if self.death is not None:
            name, error = self.death
            raise ActorDied(f"{name} died: {type(error).__name__}: {error}") from error

    async def stop(self) -> None:
        """Stop every actor, the last started first, and wait until all are closed.

        Before `run` has begun there is nothing to wait for; `run` then closes the actors without starting them.
        """
        self._ending.set()
        if self._is_running:
            await self._ended.wait()

    async def _keep(self, post: _Post) -> None:
        """The wrapper of one actor: run it, and run its successor if it may have one."""
        deaths = 0
        dead: tuple[ActorCell, Exception] | None = None
        while True:
            born = self._clock.now()
            try:
                if dead is not None and post.factory is not None:
                    post.actor = post.factory()
                cell = post.cell = ActorCell(post.actor, post.mailbox, self._clock, post.frontends)
                if dead is not None:
                    cell.inherit(*dead)
                if post.is_stopped:
                    cell.stop()  # it is still run, which closes what the actor brought with it
                await cell.run()
                break
            except Exception as error:
                deaths = 1 if self._clock.now() - born >= FORGIVEN_AFTER_S else deaths + 1
                if post.factory is None or deaths > self._max_restarts or post.is_stopped:
                    self._report(post, error)
                    break
                wait_s = backoff_s(deaths)
                log.error("actor.restarted", actor=post.actor.name, deaths=deaths, wait_s=wait_s, exc_info=error)
                dead = (cell, error)
                await post.pause(self._clock, wait_s)
                if post.is_stopped:
                    break
        post.mailbox.close()

    def _report(self, post: _Post, error: Exception) -> None:
        name = post.actor.name
        if self.death is None and not post.is_stopped:
            self.death = (name, error)
            self._ending.set()
            try:
                self._on_death(name, error)
            except Exception as broken:  # the house is stopped in order even when nobody could be told
                log.error("death.unreported", actor=name, exc_info=broken)
        log.error("actor.died", actor=name, exc_info=error)  # last: whoever waits is told also when this cannot be


class _Post:
    """One actor's place: who holds it now, and whether it is to be held at all."""

    def __init__(
        self, actor: Actor, mailbox: Mailbox, frontends: Sequence[Address], factory: Callable[[], Actor] | None
    ) -> None:
        self.actor = actor
        self.mailbox = mailbox
        self.frontends = frontends
        self.factory = factory
        self.cell: ActorCell | None = None
        self.is_stopped = False
        self._woken = asyncio.Event()

    def stop(self) -> None:
        self.is_stopped = True
        self._woken.set()
        if self.cell is not None:
            self.cell.stop()

    async def pause(self, clock: Clock, wait_s: float) -> None:
        """Wait on `clock`, or until `stop`."""
        if wait_s > 0:
            timer = clock.call_later(wait_s, self._woken.set)
            await self._woken.wait()
            timer.cancel()
            if not self.is_stopped:
                self._woken.clear()
