"""Bytes through the transports to and from a second process: thousands of messages of any size, split and joined."""

from __future__ import annotations

import hashlib
import os
import runpy
import select
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.errors import ProtocolError
from asyncpage.pipes.descriptors import LinkDescriptors
from asyncpage.pipes.lifeline import create_lifeline
from asyncpage.pipes.ring_transport import create_ring_transport
from asyncpage.pipes.socket_transport import MAX_PAYLOAD, SocketTransport, create_socket_transport
from asyncpage.pipes.transport import Transport

FAR = Path(__file__).with_name("far_process.py")
SHARED = runpy.run_path(str(FAR))
PATIENCE_S = 60.0
QUEUE = 1 << 24
COUNT, LARGEST = 10_000, 6000

Create = Callable[[tuple[int, int]], tuple[Transport, LinkDescriptors]]


def ring(ordered: bool) -> Create:
    return lambda lifeline: create_ring_transport(4096, lifeline, epoch=0, ordered=ordered, polls=20, queue_bytes=QUEUE)


KINDS: dict[str, Create] = {
    "ring": ring(True),
    "unordered ring": ring(False),
    "socket": lambda lifeline: create_socket_transport(lifeline, epoch=0, queue_bytes=QUEUE),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Transport, LinkDescriptors]]:
    lifeline = create_lifeline()
    transport, descriptors = request.param(lifeline)
    yield transport, descriptors
    transport.close()
    os.close(lifeline[0])


def start(descriptors: LinkDescriptors, *act: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, str(FAR), descriptors.to_argument(), *act], pass_fds=descriptors.fds)
    descriptors.close()
    return process


def read(transport: Transport) -> bytes:
    while (message := transport.read()) is None:
        assert select.select([transport.wake_fd], [], [], PATIENCE_S)[0]
        transport.acknowledge()
    return message


def test_ten_thousand_messages_come_from_a_second_process(pair: Any) -> None:
    transport, descriptors = pair
    process = start(descriptors, "write_payloads", "7", str(COUNT), str(LARGEST))
    for expected in SHARED["payloads"](7, COUNT, LARGEST):
        assert read(transport) == expected
    assert process.wait(PATIENCE_S) == 0
    assert transport.read() is None


def test_ten_thousand_messages_reach_a_second_process(pair: Any) -> None:
    transport, descriptors = pair
    process = start(descriptors, "read_payloads", str(COUNT))
    digest = hashlib.sha256()
    for payload in SHARED["payloads"](8, COUNT, LARGEST):
        digest.update(len(payload).to_bytes(4, "little") + payload)
        transport.write((payload,))
    assert read(transport) == digest.digest()
    assert process.wait(PATIENCE_S) == 0


# --- a socket's bytes, cut and damaged ---------------------------------------------------------------------------


def framed(payload: bytes, sequence: int, flags: int = 0) -> bytes:
    checksum = zlib.crc32(payload, 4 * len(payload) + flags + 1)
    return struct.pack("=IIII", checksum, len(payload), sequence, flags) + payload


class Wire:
    """A socket transport whose other end writes bytes as it likes."""

    def __enter__(self) -> Wire:
        near, self.raw = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.transport = SocketTransport(near, -1, may_block=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.transport.close()
        self.raw.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=5), st.data())
def test_records_split_anywhere_are_joined(sent: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(framed(payload, index) for index, payload in enumerate(sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    got = []
    with Wire() as wire:
        for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            wire.raw.sendall(stream[begin:end])
            while (message := wire.transport.read()) is not None:
                got.append(message)
    assert got == sent


def test_a_stream_cut_at_any_byte_gives_whole_messages_only() -> None:
    sent = [b"first", b"second half"]
    stream = framed(b"first", 0) + framed(b"second ", 1, 1) + framed(b"half", 2)
    for length in range(len(stream) + 1):
        with Wire() as wire:
            wire.raw.sendall(stream[:length])
            wire.raw.close()
            got = []
            while (message := wire.transport.read()) is not None:
                got.append(message)
            assert got == sent[: len(got)]
            assert len(got) == (length >= 21) + (length == len(stream))
            assert not select.select([wire.transport.wake_fd], [], [], 0)[0]


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 41), change=st.integers(1, 255))
def test_damage_on_a_socket_never_becomes_a_message(at: int, change: int) -> None:
    sent = [b"first", b"second"]
    stream = bytearray(framed(b"first", 0) + framed(b"second", 1))
    stream[at] ^= change
    got = []
    with Wire() as wire:
        wire.raw.sendall(stream)
        try:
            while (message := wire.transport.read()) is not None:
                got.append(message)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                wire.transport.read()
    assert got == sent[: len(got)]
    assert len(got) < 2


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (struct.pack("=IIII", 0, MAX_PAYLOAD + 1, 0, 0), "at most"),
        (struct.pack("=IIII", 0, 2**32 - 1, 0, 0), "at most"),
        (framed(b"x", 1), "frame 0 was expected, found frame 1"),
        (framed(b"", 0, 2), "padding"),
        (framed(b"", 0, 8), "unknown flags"),
    ],
)
def test_a_frame_that_no_peer_sends_is_refused(stream: bytes, reason: str) -> None:
    with Wire() as wire:
        wire.raw.sendall(stream)
        with pytest.raises(ProtocolError, match=reason):
            wire.transport.read()


def test_random_bytes_on_a_socket_are_refused_or_waited_for() -> None:
    for seed in range(500):
        noise = SHARED["random"].Random(seed).randbytes(64)
        with Wire() as wire:
            wire.raw.sendall(noise)
            try:
                assert wire.transport.read() is None
            except ProtocolError:
                continue
            length = int.from_bytes(noise[4:8], sys.byteorder)
            assert 48 < length <= MAX_PAYLOAD


def test_what_is_sent_to_a_socket_whose_other_end_is_gone_is_dropped() -> None:
    with Wire() as wire:
        wire.raw.close()
        for _ in range(3):
            wire.transport.write((b"x" * 3_000_000,))
        wire.transport.acknowledge()
        assert wire.transport.read() is None
