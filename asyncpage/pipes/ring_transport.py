"""Messages over two rings and two bells: the fast transport, for Linux.

Each end writes one ring, reads the other, and has a bell that the other end rings after it published records or
released room.

INVARIANT: an end that has published or released anything has rung the other's bell before it waits.
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence

from asyncpage.errors import LinkClosed
from asyncpage.pipes.bell import answer_bell, create_bell, ring_bell
from asyncpage.pipes.descriptors import LinkDescriptors
from asyncpage.pipes.lifeline import LIFELINE_EVENTS
from asyncpage.pipes.ring import RingMemory, RingReader, RingWriter, create_ring
from asyncpage.pipes.transport import QUEUE_BYTES

POLLS = 500  # looks at head before blocking, about 25 us: what a wake-up by the kernel costs on a virtual machine


class RingTransport:
    """One end. `may_block`: whether `write` waits for room. `polls`: turns of `poll`, 0 where stores have no order."""

    def __init__(
        self, outgoing: RingMemory, incoming: RingMemory, own_bell: int, other_bell: int, lifeline_fd: int,
        *, may_block: bool, polls: int, queue_bytes: int = QUEUE_BYTES,
    ) -> None:  # fmt: skip
        self._memories = (outgoing, incoming)
        self._writer = RingWriter(outgoing, queue_bytes)
        self._reader = RingReader(incoming)
        self._own_bell = own_bell
        self._other_bell = other_bell
        self._lifeline_fd = lifeline_fd
        self._may_block = may_block
        self._ordered = outgoing.ordered
        self._polls = polls if self._ordered else 0

    @property
    def wake_fd(self) -> int:
        return self._own_bell

    @property
    def crossed(self) -> tuple[int, int]:
        return self._writer.published, self._reader.position

    def write(self, parts: Sequence[bytes]) -> None:
        before = self._writer.published
        done = self._writer.write(parts)
        self._ring(self._writer.published - before, 0)
        if not done and self._may_block:
            self._wait_for_room()

    def read(self) -> bytes | None:
        message = self._reader.read()
        if message is None and not self._ordered:
            self.acknowledge()  # the bell is the only news there is, of room too
            message = self._reader.read()
        released = self._reader.release()
        if released:
            self._ring(0, released)
        return message

    def acknowledge(self) -> None:
        self._answer()
        if self._writer.queued_bytes:
            self._pump()

    def poll(self) -> bool:
        return self._polls > 0 and self._reader.poll(self._polls)

    def close(self) -> None:
        for memory in self._memories:
            memory.close()
        os.close(self._own_bell)
        os.close(self._other_bell)

    def _wait_for_room(self) -> None:
        poll = select.poll()
        poll.register(self._own_bell, select.POLLIN)
        poll.register(self._lifeline_fd, LIFELINE_EVENTS)
        self._answer()
        while not self._pump():
            if any(fd == self._lifeline_fd for fd, _ in poll.poll()):
                raise LinkClosed("the other end of the link went away while a message waited for room in the ring")
            self._answer()

    def _pump(self) -> bool:
        before = self._writer.published
        done = self._writer.pump()
        self._ring(self._writer.published - before, 0)
        return done

    def _ring(self, published: int, released: int) -> None:
        if published or released:
            ring_bell(self._other_bell, published, released, ordered=self._ordered)

    def _answer(self) -> None:
        published, released = answer_bell(self._own_bell)
        self._reader.published(published)
        self._writer.released(released)


def create_ring_transport(
    capacity_bytes: int, lifeline: tuple[int, int], *, epoch: int, ordered: bool, polls: int, queue_bytes: int
) -> tuple[RingTransport, LinkDescriptors]:
    """Two new rings of `capacity_bytes`, the near end attached. `lifeline`: near and far descriptor."""
    owner = os.getpid()
    down = create_ring(capacity_bytes, owner_pid=owner, epoch=epoch, ordered=ordered)
    up = create_ring(capacity_bytes, owner_pid=owner, epoch=epoch, ordered=ordered)
    far_bell, near_bell = create_bell(), create_bell()
    near = RingTransport(
        RingMemory(down, owner_pid=owner, epoch=epoch), RingMemory(up, owner_pid=owner, epoch=epoch),
        os.dup(near_bell), os.dup(far_bell), lifeline[0], may_block=False, polls=polls, queue_bytes=queue_bytes,
    )  # fmt: skip
    return near, LinkDescriptors("ring", (down, up, far_bell, near_bell, lifeline[1]), owner, epoch)


def attach_ring_transport(descriptors: LinkDescriptors, polls: int) -> RingTransport:
    """The far end. Errors: `ProtocolError` when the memory is not what the descriptors say; they stay open then."""
    down_fd, up_fd, far_bell, near_bell, lifeline_fd = descriptors.fds
    identity = {"owner_pid": descriptors.owner_pid, "epoch": descriptors.epoch}
    incoming = RingMemory(down_fd, **identity)
    try:
        outgoing = RingMemory(up_fd, **identity)
    except BaseException:
        incoming.close()
        raise
    descriptors.hand_over()
    os.close(down_fd)  # the mappings hold the memory
    os.close(up_fd)
    # In one process, polling would hold the interpreter's lock that the other end needs to write.
    turns = 0 if descriptors.owner_pid == os.getpid() else polls
    return RingTransport(outgoing, incoming, far_bell, near_bell, lifeline_fd, may_block=True, polls=turns)
