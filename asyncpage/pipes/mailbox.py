"""Where an actor's messages wait: bounded, first in first out, one wake-up however many arrive.

Any actor sends into it; the actor's cell (`actors/base.py`) binds itself to it and takes messages out.
An `Address` hides where the receiver is: `Mailbox` on the sender's own loop, `ThreadAddress` on another loop and
thread, a link to another process.

INVARIANT: a message that `send` took is handed to the receiver exactly once and in order, or the mailbox was closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from asyncpage.errors import MailboxFull


class Address(Protocol):
    """Somewhere a message can be sent without waiting."""

    def send(self, message: object) -> None:
        """Pass `message` on. Never waits, never awaits.

        Errors: `MailboxFull` when the receiver's bound is reached, which is a bug in the sizes.
        """
        ...


class Mailbox:
    """The queue of one actor, for senders on that actor's loop.

    Messages sent before the actor runs wait for it. After `close` they are dropped: nobody is there to read them.
    """

    __slots__ = ("_asleep", "_bound", "_look", "_overflow", "_queue", "_wake", "capacity", "name")

    def __init__(self, name: str, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"mailbox {name!r} needs a capacity of at least 1, got {capacity}")
        self.name = name
        self.capacity = capacity
        self._queue: deque[object] = deque()
        # True while a reader is bound and no wake-up is on its way; the only state that `send` has to look at.
        self._asleep = False
        self._wake: Callable[[], object] | None = None
        self._overflow: Callable[[Exception], None] | None = None
        self._bound: tuple[asyncio.AbstractEventLoop, Callable[[], None]] | None = None
        self._look: Callable[[deque[object]], None] | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def send(self, message: object) -> None:
        """Queue `message` and wake the actor in the loop's next turn, once however many come before it.

        Errors: `MailboxFull` past the capacity.
        """
        queue = self._queue
        if len(queue) >= self.capacity:
            raise MailboxFull(_full_text(self.name, self.capacity, message))
        queue.append(message)
        if self._asleep and self._wake is not None:
            self._asleep = False
            self._wake()

    # --- the reader's side --------------------------------------------------------------------------------------

    def bind(
        self, loop: asyncio.AbstractEventLoop, turn: Callable[[], None], overflow: Callable[[Exception], None]
    ) -> deque[object]:
        """Have `turn` called in `loop` when messages wait; `overflow` when a message from a thread found no room.

        Returns the queue, for `turn` to take messages from its left end; `turn` calls `rest` when it is over.
        """
        if self._wake is not None:
            raise RuntimeError(f"mailbox {self.name!r} already has a reader; one actor reads one mailbox")
        self._bound, self._overflow = (loop, turn), overflow
        self.watch(self._look)
        self.rest()
        return self._queue

    def unbind(self) -> None:
        """Let go of the reader; messages stay and wait for the next one."""
        self._asleep = False
        self._wake = self._overflow = self._bound = None

    def close(self) -> None:
        """Drop what waits and everything that still comes. A closed mailbox stays closed."""
        self.unbind()
        self._queue = deque(maxlen=0)  # takes anything, keeps nothing: `send` needs no check of its own

    def rest(self, *, again: bool = False) -> None:
        """The reader's turn is over: wake it when a message comes, or at once if one waits or `again` is set."""
        if self._wake is None:
            return
        if again or self._queue:
            self._asleep = False
            self._wake()
        else:
            self._asleep = True

    def watch(self, look: Callable[[deque[object]], None] | None) -> None:
        """Show `look` what waits, whenever the reader's turn begins, so every message once; None: no longer.

        Sending costs the same with it and without: only what a wake-up calls is another.
        """
        self._look = look
        if self._bound is not None:
            loop, turn = self._bound
            self._wake = partial(loop.call_soon, turn if look is None else partial(_shown, look, self._queue, turn))

    def overflowed(self, error: Exception) -> None:
        """A message that another thread had already handed over found no room: its reader dies of it."""
        if self._overflow is not None:
            self._overflow(error)


class ThreadAddress:
    """A mailbox as seen from other threads: messages cross to the mailbox's loop in order, a burst in one wake-up."""

    __slots__ = ("_inbox", "_is_crossing", "_loop", "_mailbox")

    def __init__(self, mailbox: Mailbox, loop: asyncio.AbstractEventLoop) -> None:
        self._mailbox = mailbox
        self._loop = loop
        self._inbox: deque[object] = deque()
        self._is_crossing = False

    def send(self, message: object) -> None:
        """Queue `message` for the mailbox's loop. Dropped when that loop is closed, as in a closed mailbox.

        Errors: `MailboxFull` when as many messages as the mailbox holds wait to cross.
        """
        if len(self._inbox) >= self._mailbox.capacity:
            raise MailboxFull(_full_text(self._mailbox.name, self._mailbox.capacity, message))
        self._inbox.append(message)
        # The flag is cleared before the inbox is read (`_arrive`), so a message that sees it set is still read.
        if not self._is_crossing:
            self._is_crossing = True
            try:
                self._loop.call_soon_threadsafe(self._arrive)
            except RuntimeError:
                if not self._loop.is_closed():
                    raise
                self._is_crossing = False
                self._inbox.clear()

    def _arrive(self) -> None:
        self._is_crossing = False
        inbox, mailbox = self._inbox, self._mailbox
        try:
            while inbox:
                mailbox.send(inbox.popleft())
        except MailboxFull as error:
            mailbox.overflowed(error)


def _shown(look: Callable[[deque[object]], None], queue: deque[object], turn: Callable[[], None]) -> None:
    """A turn of the reader that begins with a look at what waits; whatever the look does, the turn comes."""
    try:
        look(queue)
    finally:
        turn()


def _full_text(name: str, capacity: int, message: object) -> str:
    return (
        f"the mailbox of {name} is full: {capacity} messages wait and {type(message).__name__} came on top; "
        "it is sized for the admitted maximum, so either its reader hangs or the size is wrong"
    )
