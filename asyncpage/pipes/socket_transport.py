"""Messages over one stream socket: for platforms without eventfd or memfd, and wherever a ring cannot be shared.

The same frames as on a ring, without padding.

INVARIANT: it holds at most one unfinished frame of the other end, and no length is believed before it is checked.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
from collections import deque
from collections.abc import Sequence

from asyncpage.errors import LinkClosed, MailboxFull, ProtocolError
from asyncpage.pipes import frame
from asyncpage.pipes.descriptors import LinkDescriptors
from asyncpage.pipes.lifeline import LIFELINE_EVENTS
from asyncpage.pipes.transport import QUEUE_BYTES

MAX_PAYLOAD = 1 << 20
_RECEIVE = 1 << 16


class SocketTransport:
    """One end. `may_block`: whether `write` waits until the socket has taken everything.

    `wake_fd` is a selector's own descriptor (epoll, kqueue): readable when the socket is, or, while something is
    queued, when it takes more.
    """

    def __init__(
        self, stream: socket.socket, lifeline_fd: int, *, may_block: bool, queue_bytes: int = QUEUE_BYTES
    ) -> None:
        stream.setblocking(False)
        self._stream = stream
        self._lifeline_fd = lifeline_fd
        self._may_block = may_block
        self._queue_limit = queue_bytes
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._sent_frames = 0
        self._received_frames = 0
        self._sent_bytes = 0
        self._received_bytes = 0
        self._received = bytearray()
        self._joiner = frame.Joiner()
        self._is_open = True
        self._selector = selectors.DefaultSelector()
        self._selector.register(stream, selectors.EVENT_READ)

    @property
    def wake_fd(self) -> int:
        return self._selector.fileno()

    @property
    def crossed(self) -> tuple[int, int]:
        return self._sent_bytes, self._received_bytes

    def write(self, parts: Sequence[bytes]) -> None:
        length = sum(map(len, parts))
        frame.check_message_size(length)
        if self._queued_bytes and self._queued_bytes + length > self._queue_limit:
            raise MailboxFull(
                f"a message of {length} bytes found {self._queued_bytes} of {self._queue_limit} bytes queued before "
                "it; the other end does not read"
            )
        message = memoryview(b"".join(parts))
        for start in range(0, length, MAX_PAYLOAD) or (0,):
            payload = message[start : start + MAX_PAYLOAD]
            more = frame.MORE if start + MAX_PAYLOAD < length else 0
            self._enqueue(memoryview(frame.header(payload, self._sent_frames, more)))
            self._enqueue(payload)
            self._sent_frames += 1
        self._flush()
        if self._queue and self._may_block:
            self._wait_until_sent()

    def read(self) -> bytes | None:
        while True:
            frame_found = self._take_frame()
            if frame_found is not None:
                message = self._joiner.add(*frame_found)
                if message is not None:
                    return message
            elif not self._receive():
                return None

    def acknowledge(self) -> None:
        self._flush()

    def poll(self) -> bool:
        return False

    def close(self) -> None:
        self._is_open = False
        self._selector.close()
        self._stream.close()

    def _take_frame(self) -> tuple[bytes, int] | None:
        """The next frame's payload and flags, checked, or None while it is not all there."""
        if len(self._received) < frame.HEADER_BYTES:
            return None
        checksum, length, sequence, flags = frame.HEADER.unpack_from(self._received)
        if length > MAX_PAYLOAD:
            raise ProtocolError(f"frame {self._received_frames}: a length of {length} bytes, at most {MAX_PAYLOAD}")
        end = frame.HEADER_BYTES + length
        if len(self._received) < end:
            return None
        with memoryview(self._received) as received:
            payload = bytes(received[frame.HEADER_BYTES : end])
        frame.verify(payload, checksum, length, sequence, flags, self._received_frames)
        if flags == frame.SKIP:
            raise ProtocolError("a socket carries no padding; the other end speaks another protocol")
        del self._received[:end]
        self._received_frames += 1
        return payload, flags

    def _receive(self) -> bool:
        """Take what the socket has; False when it has nothing (any more)."""
        if not self._is_open:
            return False
        try:
            data = self._stream.recv(_RECEIVE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end()
            return False
        self._received += data
        self._received_bytes += len(data)
        return True

    def _enqueue(self, data: memoryview) -> None:
        self._queue.append(data)
        self._queued_bytes += len(data)

    def _flush(self) -> None:
        had_queue = bool(self._queue)
        while self._queue and self._is_open:
            try:
                sent = self._stream.send(self._queue[0])
            except BlockingIOError:
                break
            except OSError:
                self._end()
                break
            self._queued_bytes -= sent
            self._sent_bytes += sent
            if sent == len(self._queue[0]):
                self._queue.popleft()
            else:
                self._queue[0] = self._queue[0][sent:]
        if had_queue and self._is_open:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._queue else 0)
            if self._selector.get_key(self._stream).events != events:
                self._selector.modify(self._stream, events)

    def _wait_until_sent(self) -> None:
        poll = select.poll()
        poll.register(self._stream, select.POLLOUT)
        poll.register(self._lifeline_fd, LIFELINE_EVENTS)
        while self._queue:
            news = poll.poll()
            if not self._is_open or any(fd == self._lifeline_fd for fd, _ in news):
                raise LinkClosed("the other end of the link went away while a message waited to be sent")
            self._flush()

    def _end(self) -> None:
        """The other end is gone: stop watching the socket, which is readable for ever now; drop what it will not read.

        The lifeline tells the link.
        """
        if self._is_open:
            self._is_open = False
            self._selector.unregister(self._stream)
            self._queue.clear()
            self._queued_bytes = 0


def create_socket_transport(
    lifeline: tuple[int, int], *, epoch: int, queue_bytes: int
) -> tuple[SocketTransport, LinkDescriptors]:
    """A new stream socketpair, the near end attached. `lifeline`: near and far descriptor."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    transport = SocketTransport(near, lifeline[0], may_block=False, queue_bytes=queue_bytes)
    return transport, LinkDescriptors("socket", (far.detach(), lifeline[1]), os.getpid(), epoch)


def attach_socket_transport(descriptors: LinkDescriptors) -> SocketTransport:
    """The far end. Errors: `ProtocolError` when the descriptor is no socket; they stay open then."""
    stream_fd, lifeline_fd = descriptors.fds
    try:
        stream = socket.socket(fileno=stream_fd)
    except OSError as error:
        raise ProtocolError(f"descriptor {stream_fd} is not a link's socket: {error.strerror}") from None
    descriptors.hand_over()
    return SocketTransport(stream, lifeline_fd, may_block=True)
