"""The link: one duplex of messages between an executor actor (near end) and its executor (far end).

The near end belongs to an event loop and never blocks: it is woken by `wake_fd`, and what finds no room is queued,
bounded. The far end belongs to a thread that has nothing else to do: it polls for a few turns, then blocks until there
is a message or the other end is gone. Two rings carry it, or a socket where memory cannot be shared.

INVARIANT: what `receive` and `wait` return is what the other end sent, in order; a message that its sender did not
finish is never seen; after an error the link stays unusable.
"""

from __future__ import annotations

import os
import select
from typing import Protocol

from asyncpage.errors import AsyncpageError, LinkClosed, ProtocolError
from asyncpage.pipes.descriptors import LinkDescriptors
from asyncpage.pipes.lifeline import LIFELINE_EVENTS, create_lifeline
from asyncpage.pipes.ring import RING_BYTES, STORES_ARE_ORDERED
from asyncpage.pipes.ring_transport import POLLS, attach_ring_transport, create_ring_transport
from asyncpage.pipes.socket_transport import attach_socket_transport, create_socket_transport
from asyncpage.pipes.transport import QUEUE_BYTES, Transport
from asyncpage.pipes.wire import FROM_EXECUTOR, TO_EXECUTOR, Decoder, Encoder, Message

CAN_SHARE_MEMORY = hasattr(os, "memfd_create") and hasattr(os, "eventfd")

__all__ = ["Link", "LinkDescriptors", "attach_link", "create_link", "create_socket_link"]


class Link(Protocol):
    """One end. It is used by one thread; both ends may be in one process."""

    @property
    def wake_fd(self) -> int:
        """Readable when messages came or queued ones may go on: then `acknowledge`, and `receive` until None."""
        ...

    @property
    def lifeline_fd(self) -> int:
        """Readable (end of file) once the other end is gone; what it sent before can still be received."""
        ...

    @property
    def crossed(self) -> tuple[int, int]:
        """Bytes sent and received since the link began."""
        ...

    def send(self, message: Message) -> None:
        """Send a message.

        The near end never blocks: without room the message is queued and `acknowledge` sends it on. What is sent to
        an end that is gone is lost. Errors: `MailboxFull` past the queue's bound (the message was not sent),
        `ProtocolError` for a message that is malformed or too long (it was not sent) and for damaged memory,
        `LinkClosed` after `close` and, at the far end, when the near one goes while it waits for room.
        """
        ...

    def receive(self) -> Message | None:
        """The next message or None; never blocks. Errors: `ProtocolError`, and again on every later call."""
        ...

    def wait(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None after `timeout_s` seconds without news from the other end.

        Errors: `LinkClosed` when the other end is gone and all it sent was received; `ProtocolError`.
        """
        ...

    def acknowledge(self) -> None:
        """Reset `wake_fd` and send on what was queued; never blocks. Errors: `ProtocolError` for damaged memory."""
        ...

    def close(self) -> None:
        """Let go; the other end's lifeline ends. A second call does nothing."""
        ...


def create_link(
    capacity_bytes: int = RING_BYTES,
    *,
    epoch: int = 0,
    polls: int = POLLS,
    ordered: bool = STORES_ARE_ORDERED,
    queue_bytes: int = QUEUE_BYTES,
) -> tuple[Link, LinkDescriptors]:
    """The near end of a new link and what the far end attaches to; a socket link where memory cannot be shared.

    `capacity_bytes` is one ring's. `epoch` is checked when the far end attaches. `polls`: turns of `wait` before it
    blocks. `ordered` False is the mode for processors that reorder stores, correct on any. `queue_bytes` bounds what
    `send` keeps while the far end does not read. After the child has started, call `descriptors.close()`.
    """
    if not CAN_SHARE_MEMORY:
        return create_socket_link(epoch=epoch, queue_bytes=queue_bytes)
    lifeline = create_lifeline()
    transport, descriptors = create_ring_transport(
        capacity_bytes, lifeline, epoch=epoch, ordered=ordered, polls=polls, queue_bytes=queue_bytes
    )
    return _MessageLink(transport, lifeline[0], FROM_EXECUTOR), descriptors


def create_socket_link(*, epoch: int = 0, queue_bytes: int = QUEUE_BYTES) -> tuple[Link, LinkDescriptors]:
    """As `create_link`, over a stream socket."""
    lifeline = create_lifeline()
    transport, descriptors = create_socket_transport(lifeline, epoch=epoch, queue_bytes=queue_bytes)
    return _MessageLink(transport, lifeline[0], FROM_EXECUTOR), descriptors


def attach_link(descriptors: LinkDescriptors, *, polls: int = POLLS) -> Link:
    """The far end: in a child that inherited the descriptors, or in this process over `descriptors.duplicate()`.

    The link owns the descriptors from now on. Errors: `ProtocolError` when they are not such a link's; they are left
    open then.
    """
    descriptors.check_open()
    lifeline_fd = descriptors.fds[-1]
    transport: Transport
    if descriptors.kind == "ring":
        transport = attach_ring_transport(descriptors, polls)
    else:
        transport = attach_socket_transport(descriptors)
    return _MessageLink(transport, lifeline_fd, TO_EXECUTOR)


class _MessageLink:
    """Codec, transport and lifeline put together."""

    def __init__(self, transport: Transport, lifeline_fd: int, accepts: frozenset[type]) -> None:
        self._transport = transport
        self._lifeline_fd = lifeline_fd
        self._encoder = Encoder()
        self._decoder = Decoder(accepts)
        self._error: AsyncpageError | None = None
        self._is_cut = False
        self._is_open = True
        self._news = select.poll()
        self._news.register(transport.wake_fd, select.POLLIN)
        self._news.register(lifeline_fd, LIFELINE_EVENTS)

    @property
    def wake_fd(self) -> int:
        return self._transport.wake_fd

    @property
    def lifeline_fd(self) -> int:
        return self._lifeline_fd

    @property
    def crossed(self) -> tuple[int, int]:
        return self._transport.crossed

    def send(self, message: Message) -> None:
        self._check_usable()
        try:
            self._transport.write(self._encoder.encode(message))
        except AsyncpageError:
            self._encoder.forget()
            raise

    def receive(self) -> Message | None:
        self._check_usable()
        try:
            payload = self._transport.read()
            return None if payload is None else self._decoder.decode(payload)
        except ProtocolError as error:
            self._error = error
            raise

    def wait(self, timeout_s: float | None = None) -> Message | None:
        while True:
            message = self.receive()
            if message is not None:
                return message
            if self._is_cut:
                raise LinkClosed("the other end of the link is gone")
            if self._transport.poll():
                continue
            news = self._news.poll(None if timeout_s is None else timeout_s * 1000)
            if not news:
                return None
            self._is_cut = any(fd == self._lifeline_fd for fd, _ in news)
            self.acknowledge()

    def acknowledge(self) -> None:
        self._check_usable()
        self._transport.acknowledge()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._error = LinkClosed("this end of the link was closed")
            self._transport.close()
            os.close(self._lifeline_fd)

    def _check_usable(self) -> None:
        if self._error is not None:
            raise type(self._error)(str(self._error))  # a new one: its traceback would grow with every raise
