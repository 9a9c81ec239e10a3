"""One actor on a loop of its own in a thread of its own, reachable by its address only.

Shows in tests that an actor's code does not depend on where it runs.

INVARIANT: `stop` returns after the actor was closed and its loop too, and raises what the actor died of.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from asyncpage.actors.base import Actor, ActorCell
from asyncpage.clock import Clock
from asyncpage.pipes.mailbox import Address, Mailbox, ThreadAddress


class ThreadedCell:
    """A place for one actor. `address` is valid from birth, so that actors can be built with each other's."""

    def __init__(
        self, mailbox: Mailbox, loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    ) -> None:
        self._mailbox = mailbox
        self._loop = loop_factory()
        self._cell: ActorCell | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.address = ThreadAddress(mailbox, self._loop)

    def start(self, actor: Actor, clock: Clock, frontends: Sequence[Address] = ()) -> None:
        """Run `actor` here; `frontends` must be addresses that work from this thread."""
        self._cell = ActorCell(actor, self._mailbox, clock, frontends)
        self._thread = threading.Thread(target=self._run, args=(self._cell,), name=actor.name, daemon=True)
        self._thread.start()

    def call(self, callback: Callable[[], object]) -> None:
        """Run `callback` on the actor's loop, for what its owner calls there."""
        self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """End the actor and its thread. Errors: what the actor died of."""
        if self._cell is not None and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._cell.stop)
            except RuntimeError:
                if not self._loop.is_closed():
                    raise
        self.join()
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        """Wait until the actor has ended by `stop` or by death."""
        if self._thread is None:
            self._loop.close()
        else:
            self._thread.join()

    def _run(self, cell: ActorCell) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(cell.run())
        except BaseException as error:
            self._error = error
        finally:
            self._mailbox.close()
