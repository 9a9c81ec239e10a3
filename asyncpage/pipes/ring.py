"""The ring: records from one writer to one reader through memory that both have mapped.

A transport puts messages in at one end and takes them out at the other; waking and peer death are its business.
Memory: a header (magic, version, mode, capacity, owner pid, epoch, checksum), then head and tail (unsigned 64 bit,
bytes since the start) on cache lines of their own, then `capacity` bytes of records. Only the writer stores head, only
the reader stores tail. A record is a frame, 16-byte aligned; it never wraps: a `SKIP` frame pads to the end instead.

Why the reader sees a record whole or not at all. The writer stores payload, then frame header, then head; head is one
aligned 8-byte store (CPython packs a "Q" item by a fixed-size copy, a single move) and the only publication.
- On x86 (ordered mode) stores become visible in program order and loads are made in program order, so a reader that
  loads the new head also loads the record: head is a release store and an acquire load for free. The compiler cannot
  move them, each access is its own call into the interpreter. Non-temporal and fast-string copies of large payloads
  keep the rule: the C library fences the former, and no later store passes the latter. In the other direction the
  reader has loaded (copied) a record before it stores tail, and the writer loads tail before it overwrites.
- Elsewhere stores may become visible in any order, and Python has no barrier. There the memory's cursors are never
  read: what was published and released travels as a number in the bell (an eventfd), and the kernel's lock around
  that number, released by the write and acquired by the read, orders the memory. So there is nothing to poll.

Tried and left: releasing after every record costs a system call and a cache line a message; the reader releases once
a quarter of the ring is consumed instead, which cannot starve the writer: a record with its padding needs at most
half, and at least three quarters are free when the reader has caught up.

INVARIANT: whatever bytes the memory holds, the reader returns messages that were written, in order, or None, or raises
`ProtocolError`; it never reads outside the published part and never waits.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import struct
from collections import deque
from collections.abc import Sequence
from zlib import crc32

from asyncpage.errors import MailboxFull, ProtocolError, UsageError
from asyncpage.pipes.frame import (
    HEADER,
    HEADER_BYTES,
    MORE,
    SEQUENCE_MASK,
    SKIP,
    Joiner,
    check_message_size,
    verify,
)

STORES_ARE_ORDERED = platform.machine().lower() in ("x86_64", "amd64", "i686", "i386")
RING_BYTES = 1 << 20  # 64 Ki token ids in one record; small enough to stay in a core's cache as it is cycled through
ALIGNMENT = 16
_UP, _ALIGN = ALIGNMENT - 1, -ALIGNMENT  # n + _UP & _ALIGN rounds n up to a record's end

# Bound once: looking them up for every record is a tenth of a round trip. So is a call of `frame.seed`, which stands
# written out below.
_unpack, _pack_into = HEADER.unpack_from, HEADER.pack_into

_MAGIC = b"apagring"
_VERSION = 1
_HEADER = struct.Struct("=8sIIQQQI")  # magic, version, ordered, capacity, owner pid, epoch, checksum
_CHECKED = _HEADER.size - 4
_HEAD_AT, _TAIL_AT, DATA_AT = 128, 256, 512  # 128 apart: processors prefetch cache lines in pairs
_MINIMUM, _MAXIMUM = 1 << 10, 1 << 30
_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0) | getattr(fcntl, "F_SEAL_SEAL", 0)


def create_ring(capacity_bytes: int, *, owner_pid: int, epoch: int, ordered: bool) -> int:
    """A descriptor of new, zeroed ring memory: nameless, 0600, its size sealed so that no peer can cut it under us.

    `capacity_bytes` is rounded up to a power of two. Errors: `UsageError` outside 1 KiB .. 1 GiB.
    """
    if not _MINIMUM <= capacity_bytes <= _MAXIMUM:
        raise UsageError(f"a ring holds {_MINIMUM} to {_MAXIMUM} bytes, got {capacity_bytes}")
    capacity = 1 << (capacity_bytes - 1).bit_length()
    fd = os.memfd_create("asyncpage-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.fchmod(fd, 0o600)
    os.ftruncate(fd, DATA_AT + capacity)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    fields = _HEADER.pack(_MAGIC, _VERSION, ordered, capacity, owner_pid, epoch, 0)[:_CHECKED]
    os.pwrite(fd, fields + struct.pack("=I", crc32(fields)), 0)
    return fd


class RingMemory:
    """A mapping of ring memory, its header checked.

    `owner_pid`, `epoch`: what the header must say. Errors: `ProtocolError` naming the field that is wrong.
    """

    def __init__(self, fd: int, *, owner_pid: int, epoch: int) -> None:
        try:
            size = os.fstat(fd).st_size
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as error:
            raise ProtocolError(f"descriptor {fd} is not ring memory: {error.strerror}") from None
        if size < DATA_AT or seals & _SEALS != _SEALS:
            raise ProtocolError(f"descriptor {fd} is not ring memory: {size} bytes, seals {seals:#x}")
        self._map = mmap.mmap(fd, size)
        self._view = memoryview(self._map)
        try:
            self.ordered, self.capacity = self._check(size, owner_pid, epoch)
        except ProtocolError:
            self._view.release()
            self._map.close()
            raise
        self.head = self._view[_HEAD_AT : _HEAD_AT + 8].cast("Q")
        self.tail = self._view[_TAIL_AT : _TAIL_AT + 8].cast("Q")
        self.data = self._view[DATA_AT:]

    def _check(self, size: int, owner_pid: int, epoch: int) -> tuple[bool, int]:
        magic, version, ordered, capacity, owner, age, checksum = _HEADER.unpack_from(self._view)
        for name, found, expected in (
            ("magic", magic, _MAGIC),
            ("version", version, _VERSION),
            ("capacity", capacity, size - DATA_AT),
            ("owner pid", owner, owner_pid),
            ("epoch", age, epoch),
            ("checksum", checksum, crc32(self._view[:_CHECKED])),
        ):
            if found != expected:
                raise ProtocolError(f"ring header: {name} is {found!r}, expected {expected!r}; not this link's memory")
        if ordered and not STORES_ARE_ORDERED:
            raise ProtocolError("ring header: ordered mode, but this processor does not keep the order of stores")
        return bool(ordered), int(capacity)

    def close(self) -> None:
        """Unmap; the memory goes when the last side has."""
        for view in (self.head, self.tail, self.data, self._view):
            view.release()
        self._map.close()


def max_payload(capacity: int) -> int:
    """Bytes that one record carries: with its header a quarter of the ring, so that it fits once the reader is up."""
    return capacity // 4 - HEADER_BYTES


class RingWriter:
    """The only one that stores head. Messages that find no room wait here, up to `queue_bytes`.

    `published` is head as the reader may see it; `released` tells it how far tail has come when tail is not read.
    """

    def __init__(self, memory: RingMemory, queue_bytes: int) -> None:
        self._ordered = memory.ordered
        self._head_cell = memory.head
        self._tail_cell = memory.tail
        self._data = memory.data
        self._capacity = memory.capacity
        self._mask = memory.capacity - 1
        self._payload_limit = max_payload(memory.capacity)
        self._queue: deque[memoryview] = deque()
        self._queue_limit = queue_bytes
        self._place = 0
        self._head = 0
        self._tail = 0
        self.published = 0
        self.queued_bytes = 0

    def write(self, parts: Sequence[bytes]) -> bool:
        """Put in one message, the concatenation of `parts`, each copied straight into the ring.

        False: some of it waits for room; call `pump` after the reader has released some.
        Errors: `ProtocolError` for a message that is too long, `MailboxFull` when too much is waiting already;
        then nothing of it was written.
        """
        length = 0
        for part in parts:
            length += len(part)
        if not self._queue and length <= self._payload_limit and self._make_room(length):
            self._put(parts, length, 0)
            self._head_cell[0] = self.published = self._head
            return True
        check_message_size(length)
        if self.queued_bytes + length > self._queue_limit:
            raise MailboxFull(
                f"a message of {length} bytes found the ring full and {self.queued_bytes} of {self._queue_limit} bytes "
                "queued before it; the other end does not read, or more is in flight than the ring was sized for"
            )
        self._queue.append(memoryview(b"".join(parts)))
        self.queued_bytes += length
        return self.pump()

    def pump(self) -> bool:
        """Move waiting messages into the ring as far as there is room; True when none waits any more."""
        while self._queue:
            message = self._queue[0]
            length = min(len(message), self._payload_limit)
            if not self._make_room(length):
                break
            more = len(message) > length
            self._put((message[:length],), length, MORE if more else 0)
            self.queued_bytes -= length
            if more:
                self._queue[0] = message[length:]
            else:
                self._queue.popleft()
        self._head_cell[0] = self.published = self._head
        return not self._queue

    def released(self, count: int) -> None:
        """The reader has released `count` more bytes (said by the bell; ignored where tail itself is read)."""
        if not self._ordered:
            self._move_tail(self._tail + count)

    def _make_room(self, length: int) -> bool:
        """Whether a record of `length` payload bytes fits; pads to the ring's end first when it must."""
        need = HEADER_BYTES + length + _UP & _ALIGN
        offset = self._head & self._mask
        padding = self._capacity - offset if offset + need > self._capacity else 0
        if self._head + padding + need - self._tail > self._capacity:
            if self._ordered:
                self._move_tail(self._tail_cell[0])
            if self._head + padding + need - self._tail > self._capacity:
                return False
        if padding:
            self._put((), padding - HEADER_BYTES, SKIP)
        return True

    def _move_tail(self, tail: int) -> None:
        if not self._tail <= tail <= self.published or tail % ALIGNMENT:
            raise ProtocolError(f"ring tail is {tail}, expected {self._tail} to {self.published} in steps of 16")
        self._tail = tail

    def _put(self, parts: Sequence[bytes | memoryview], length: int, flags: int) -> None:
        data = self._data
        start = self._head & self._mask
        at = start + HEADER_BYTES
        sequence = self._place & SEQUENCE_MASK
        checksum = length * 4 + flags + 1
        for part in parts:
            end = at + len(part)
            data[at:end] = part
            at = end
            checksum = crc32(part, checksum)
        _pack_into(data, start, checksum, length, sequence, flags)
        self._place += 1
        self._head += HEADER_BYTES + length + _UP & _ALIGN


class RingReader:
    """The only one that stores tail.

    `position` is how far it has read; `released` how far it has told the writer so.
    """

    def __init__(self, memory: RingMemory) -> None:
        self._ordered = memory.ordered
        self._head_cell = memory.head
        self._tail_cell = memory.tail
        self._data = memory.data
        self._capacity = memory.capacity
        self._mask = memory.capacity - 1
        self._payload_limit = max_payload(memory.capacity)
        self._release_at = memory.capacity // 4
        self._joiner = Joiner()
        self._place = 0
        self._limit = 0
        self.position = 0
        self.released = 0

    def poll(self, turns: int) -> bool:
        """Look at head up to `turns` times; True when it has moved. Of use in ordered mode only."""
        cell, position = self._head_cell, self.position
        for _ in range(turns):  # noqa: SIM110 - a generator doubles the cost of a turn
            if cell[0] != position:
                return True
        return False

    def published(self, count: int) -> None:
        """The writer has published `count` more bytes (said by the bell; ignored where head itself is read)."""
        if not self._ordered:
            self._move_limit(self._limit + count)

    def read(self) -> bytes | None:
        """The next whole message, copied out of the ring, or None when there is none yet.

        Errors: `ProtocolError` for anything but a frame that the writer put there; the ring is of no use then.
        """
        while True:
            position = self.position
            if position == self._limit and not self._look():
                return None
            start = position & self._mask
            checksum, length, sequence, flags = _unpack(self._data, start)
            end = start + HEADER_BYTES + length
            after = position + (HEADER_BYTES + length + _UP & _ALIGN)
            if end > self._capacity or after > self._limit or length > self._payload_limit:
                raise ProtocolError(f"frame {self._place}: a length of {length} bytes does not fit its place")
            if flags == SKIP:
                if end != self._capacity:
                    raise ProtocolError(f"frame {self._place}: padding that ends before the ring does")
                end = start + HEADER_BYTES
            payload = bytes(self._data[start + HEADER_BYTES : end])
            is_whole = crc32(payload, length * 4 + flags + 1) == checksum
            if not is_whole or sequence != self._place & SEQUENCE_MASK or flags > SKIP:
                verify(payload, checksum, length, sequence, flags, self._place)  # says what is wrong
            self._place += 1
            self.position = after
            if not flags and not self._joiner.is_joining:
                return payload
            if flags != SKIP:
                message = self._joiner.add(payload, flags)
                if message is not None:
                    return message

    def release(self) -> int:
        """Give the writer its room back once a quarter of the ring was consumed; the bytes released, usually 0.

        After a number other than 0 the writer's bell must be rung.
        """
        count = self.position - self.released
        if count < self._release_at:
            return 0
        self._tail_cell[0] = self.position
        self.released = self.position
        return count

    def _look(self) -> bool:
        """Whether head, where it may be read, has moved past what was read."""
        if not self._ordered:
            return False
        head = self._head_cell[0]
        if head == self.position:
            return False
        self._move_limit(head)
        return True

    def _move_limit(self, limit: int) -> None:
        if not self._limit <= limit <= self.released + self._capacity or limit % ALIGNMENT:
            raise ProtocolError(
                f"ring head is {limit}, expected {self._limit} to {self.released + self._capacity} in steps of 16"
            )
        self._limit = limit
