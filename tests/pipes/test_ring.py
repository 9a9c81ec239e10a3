"""The ring's writer and reader over one memory: order, wrap, room, and what damage does."""

from __future__ import annotations

import itertools
import os
import random
import struct
import sys
import zlib
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.errors import MailboxFull, ProtocolError, UsageError
from asyncpage.pipes import ring as ring_module
from asyncpage.pipes.ring import DATA_AT, RingMemory, RingReader, RingWriter, create_ring, max_payload

CAPACITY = 1024
HEAD_AT, TAIL_AT = 128, 256
QUEUE = 1 << 20

modes = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])


class Pair:
    """A writer and a reader on mappings of their own; in unordered mode it carries what the bell would."""

    def __init__(self, capacity: int = CAPACITY, *, ordered: bool = True, queue: int = QUEUE) -> None:
        self.fd = create_ring(capacity, owner_pid=1, epoch=2, ordered=ordered)
        self.ours = RingMemory(self.fd, owner_pid=1, epoch=2)
        self.theirs = RingMemory(self.fd, owner_pid=1, epoch=2)
        self.writer = RingWriter(self.ours, queue)
        self.reader = RingReader(self.theirs)
        self._told = 0

    def write(self, *parts: bytes) -> bool:
        return self.writer.write(parts)

    def tell(self) -> None:
        """What was published."""
        self.reader.published(self.writer.published - self._told)
        self._told = self.writer.published

    def read(self) -> bytes | None:
        self.tell()
        message = self.reader.read()
        self.writer.released(self.reader.release())
        return message

    def drain(self) -> list[bytes]:
        messages = []
        while True:
            message = self.read()
            if message is not None:
                messages.append(message)
            elif self.writer.pump():
                self.tell()
                message = self.read()
                if message is None:
                    return messages
                messages.append(message)

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()
        os.close(self.fd)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@modes
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_messages_of_any_size_come_out_as_they_went_in(ordered: bool, data: st.DataObject) -> None:
    sizes = data.draw(
        st.lists(
            st.one_of(
                st.integers(0, 40), st.integers(200, 260), st.integers(0, 3000), st.sampled_from([239, 240, 241])
            ),
            max_size=40,
        )
    )
    sent = [random.Random(index).randbytes(size) for index, size in enumerate(sizes)]
    got: list[bytes] = []
    with Pair(ordered=ordered) as pair:
        for message in sent:
            cut = data.draw(st.integers(0, len(message)))
            pair.write(message[:cut], message[cut:])
            if data.draw(st.booleans()):
                got += pair.drain()
        got += pair.drain()
    assert got == sent


@modes
def test_ten_thousand_messages_pass_through_a_ring_of_one_kilobyte(ordered: bool) -> None:
    chance = random.Random(3)
    with Pair(ordered=ordered) as pair:
        for _ in range(10_000):
            message = chance.randbytes(chance.randrange(240))
            assert pair.write(message)
            assert pair.read() == message


def test_a_record_that_would_wrap_goes_behind_padding() -> None:
    with Pair() as pair:
        for number in range(4):
            assert pair.write(bytes([number]) * 200)
            assert pair.read() == bytes([number]) * 200
        assert pair.reader.position == 4 * 224
        assert pair.write(b"x" * 200)
        assert pair.theirs.data[16:216] == b"x" * 200
        assert pair.read() == b"x" * 200
        assert pair.reader.position == CAPACITY + 224


@modes
def test_a_message_longer_than_the_ring_passes_in_turns(ordered: bool) -> None:
    message = random.Random(1).randbytes(10 * CAPACITY)
    with Pair(ordered=ordered) as pair:
        assert not pair.write(message)
        assert pair.drain() == [message]
        assert pair.writer.queued_bytes == 0


@modes
def test_a_full_ring_queues_in_order_and_up_to_its_bound(ordered: bool) -> None:
    with Pair(ordered=ordered, queue=500) as pair:
        sent = []
        while pair.write(bytes([len(sent)]) * 200):
            sent.append(bytes([len(sent)]) * 200)
        sent.append(bytes([len(sent)]) * 200)
        pair.write(b"small")
        with pytest.raises(MailboxFull, match="205 of 500 bytes queued"):
            pair.write(b"y" * 300)
        assert pair.drain() == [*sent, b"small"]
        assert pair.write(b"y" * 200)
        assert pair.read() == b"y" * 200


def test_a_message_too_long_for_any_reader_is_refused_by_its_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncpage.pipes.frame.MAX_MESSAGE_BYTES", 5000)
    with Pair() as pair:
        with pytest.raises(ProtocolError, match="5001 bytes is longer than the 5000"):
            pair.write(b"z" * 5001)
        assert pair.drain() == []


def test_a_message_that_never_ends_is_refused_by_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    with Pair() as pair:
        pair.write(b"z" * 6000)
        monkeypatch.setattr("asyncpage.pipes.frame.MAX_MESSAGE_BYTES", 5000)
        with pytest.raises(ProtocolError, match="past 5000 bytes"):
            pair.drain()


def test_room_comes_back_once_a_quarter_was_read() -> None:
    with Pair() as pair:
        pair.write(b"a" * 112)
        assert pair.reader.read() is not None
        assert pair.reader.release() == 0
        pair.write(b"a" * 112)
        assert pair.reader.read() is not None
        assert pair.reader.release() == 256
        assert pair.ours.tail[0] == 256


def test_the_unordered_reader_trusts_the_bell_alone() -> None:
    with Pair(ordered=False) as pair:
        pair.write(b"first")
        pair.tell()
        pair.write(b"second")
        assert pair.reader.read() == b"first"
        assert pair.reader.read() is None
        pair.tell()
        assert pair.reader.read() == b"second"


def test_polling_sees_what_is_published_and_ends_without_it() -> None:
    with Pair() as pair:
        assert not pair.reader.poll(1000)
        pair.write(b"a")
        assert pair.reader.poll(1)
        pair.reader.read()
        assert not pair.reader.poll(1000)


def test_the_memory_is_private_nameless_and_of_fixed_size() -> None:
    fd = create_ring(5000, owner_pid=1, epoch=0, ordered=True)
    try:
        status = os.fstat(fd)
        assert status.st_mode & 0o777 == 0o600
        assert status.st_nlink == 0
        assert status.st_size == DATA_AT + 8192
        assert not os.get_inheritable(fd)
        for size in (0, 1 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", [0, 1023, (1 << 30) + 1])
def test_a_ring_of_a_useless_size_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match=f"got {size}"):
        create_ring(size, owner_pid=1, epoch=0, ordered=True)


# --- the header --------------------------------------------------------------------------------------------------

HEADER = struct.Struct("=8sIIQQQI")
FIELDS = {
    "magic": (0, 8),
    "version": (8, 4),
    "checksum": (12, 4),  # the mode has no second witness but the checksum
    "capacity": (16, 8),
    "owner pid": (24, 8),
    "epoch": (32, 8),
}


@pytest.mark.parametrize("name", FIELDS)
@settings(max_examples=50, deadline=None)
@given(change=st.binary(min_size=8, max_size=8))
def test_a_damaged_header_field_is_refused_by_name(name: str, change: bytes) -> None:
    at, size = FIELDS[name]
    with Pair() as pair:
        before = os.pread(pair.fd, size, at)
        after = bytes(a ^ b for a, b in zip(before, change, strict=False))
        if after == before:
            return
        os.pwrite(pair.fd, after, at)
        with pytest.raises(ProtocolError, match=f"ring header: {name} is"):
            RingMemory(pair.fd, owner_pid=1, epoch=2)


def test_a_damaged_header_checksum_is_refused() -> None:
    with Pair() as pair:
        before = os.pread(pair.fd, 4, 40)
        assert int.from_bytes(before, sys.byteorder) == zlib.crc32(os.pread(pair.fd, 40, 0))
        os.pwrite(pair.fd, bytes([before[0] ^ 1]), 40)
        with pytest.raises(ProtocolError, match="ring header: checksum"):
            RingMemory(pair.fd, owner_pid=1, epoch=2)


@pytest.mark.parametrize(("owner_pid", "epoch", "name"), [(5, 2, "owner pid"), (1, 3, "epoch")])
def test_memory_of_another_link_is_refused(owner_pid: int, epoch: int, name: str) -> None:
    with Pair() as pair, pytest.raises(ProtocolError, match=f"{name} is"):
        RingMemory(pair.fd, owner_pid=owner_pid, epoch=epoch)


def test_ordered_memory_is_refused_where_stores_have_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    with Pair() as pair:
        monkeypatch.setattr(ring_module, "STORES_ARE_ORDERED", False)
        with pytest.raises(ProtocolError, match="does not keep the order"):
            RingMemory(pair.fd, owner_pid=1, epoch=2)


def test_a_descriptor_that_is_no_ring_is_refused() -> None:
    fds = [os.memfd_create("x"), os.open("/dev/null", os.O_RDONLY)]
    fds += os.pipe()
    for fd in fds:
        with pytest.raises(ProtocolError, match=f"descriptor {fd} is not ring memory"):
            RingMemory(fd, owner_pid=1, epoch=2)
        os.close(fd)


# --- damage ------------------------------------------------------------------------------------------------------


def read_after_damage(pair: Pair) -> tuple[list[bytes], bool]:
    """What the reader returns, and whether it then refused the rest (and goes on refusing)."""
    got = []
    try:
        while (message := pair.reader.read()) is not None:
            got.append(message)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            pair.reader.read()
        return got, True
    return got, False


def wrapped_pair() -> tuple[Pair, list[bytes]]:
    """A ring that has come around and holds four messages, one of them behind padding, one of two records."""
    pair = Pair()
    for _ in range(4):
        pair.write(b"o" * 200)
        pair.read()
    sent = [b"a" * 130, b"b" * 230, b"c" * 300, b""]
    for message in sent:
        assert pair.write(message)
    return pair, sent


def test_the_damaged_ring_of_these_tests_is_whole_before() -> None:
    pair, sent = wrapped_pair()
    with pair:
        assert read_after_damage(pair) == (sent, False)


@settings(max_examples=1000, deadline=None)
@given(at=st.integers(0, CAPACITY - 1), change=st.binary(min_size=1, max_size=24))
def test_damage_to_records_never_becomes_a_message(at: int, change: bytes) -> None:
    pair, sent = wrapped_pair()
    with pair:
        damaged = min(at + len(change), CAPACITY)
        for index in range(at, damaged):
            pair.theirs.data[index] ^= change[index - at]
        got, is_refused = read_after_damage(pair)
    assert got == sent[: len(got)]
    assert is_refused or got == sent


@settings(max_examples=500, deadline=None)
@given(head=st.one_of(st.integers(0, 5000), st.integers(0, 2**64 - 1)))
def test_a_damaged_head_shows_no_message_that_was_not_written(head: int) -> None:
    pair, sent = wrapped_pair()
    with pair:
        pair.theirs.head[0] = head
        got, is_refused = read_after_damage(pair)
        assert got == sent[: len(got)]
        if head > pair.writer.published or head < 4 * 224 or head % 16:
            assert is_refused


@settings(max_examples=300, deadline=None)
@given(tail=st.one_of(st.integers(0, 5000), st.integers(0, 2**64 - 1)))
def test_a_damaged_tail_never_lets_the_writer_overwrite(tail: int) -> None:
    pair, sent = wrapped_pair()
    with pair:
        pair.ours.tail[0] = tail
        published = pair.writer.published
        is_possible = tail % 16 == 0 and pair.reader.released <= tail <= published
        if is_possible and tail > pair.reader.position:
            return  # says that unread records were read: only the reader could know
        for _ in range(8):
            try:
                pair.write(b"n" * 200)
            except ProtocolError:
                assert not is_possible
                break
        got, _ = read_after_damage(pair)
        assert got[: len(sent)] == sent


def test_a_record_of_an_earlier_lap_is_refused() -> None:
    with Pair() as pair:
        for _ in range(8):
            pair.write(b"s" * 112)
            pair.read()
        pair.theirs.head[0] = CAPACITY + 128
        with pytest.raises(ProtocolError, match="frame 8 was expected, found frame 0"):
            pair.reader.read()


def test_a_tail_that_goes_back_is_refused() -> None:
    with Pair() as pair:
        for _ in range(8):
            pair.write(b"s" * 240)
            pair.read()
        pair.ours.tail[0] = 0
        with pytest.raises(ProtocolError, match="ring tail is 0, expected"):
            pair.write(b"s" * 900)


@settings(max_examples=500, deadline=None)
@given(noise=st.randoms(use_true_random=False), head=st.integers(1, CAPACITY // 16))
def test_random_bytes_are_refused(noise: random.Random, head: int) -> None:
    with Pair() as pair:
        pair.theirs.data[:] = noise.randbytes(CAPACITY)
        pair.theirs.head[0] = head * 16
        assert read_after_damage(pair) == ([], True)


def test_zeroed_memory_is_no_record() -> None:
    with Pair() as pair:
        pair.theirs.head[0] = 512
        assert read_after_damage(pair) == ([], True)


@pytest.mark.parametrize("flags", [3, 4, 1 << 31])
def test_flags_of_another_version_are_refused(flags: int) -> None:
    with Pair() as pair:
        frame = struct.pack("=IIII", zlib.crc32(b"data", 4 * 4 + flags + 1), 4, 0, flags) + b"data"
        pair.theirs.data[: len(frame)] = frame
        pair.theirs.head[0] = 32
        with pytest.raises(ProtocolError, match="unknown flags"):
            pair.reader.read()


def test_padding_that_ends_early_is_refused() -> None:
    with Pair() as pair:
        pair.theirs.data[:16] = struct.pack("=IIII", zlib.crc32(b"", 4 * 16 + 2 + 1), 16, 0, 2)
        pair.theirs.head[0] = 32
        with pytest.raises(ProtocolError, match="padding"):
            pair.reader.read()


def test_a_record_longer_than_a_quarter_of_the_ring_is_refused() -> None:
    with Pair() as pair:
        payload = b"p" * (max_payload(CAPACITY) + 1)
        frame = struct.pack("=IIII", zlib.crc32(payload, 4 * len(payload) + 1), len(payload), 0, 0) + payload
        pair.theirs.data[: len(frame)] = frame
        pair.theirs.head[0] = 272
        with pytest.raises(ProtocolError, match="does not fit"):
            pair.reader.read()


# --- a writer that stops anywhere ------------------------------------------------------------------------------------


class Recorder:
    """The memory's content in front of every line of `ring.py` that a call executes: each prefix of its stores."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.contents: list[bytes] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != ring_module.__file__:
            return None
        content = os.pread(self.fd, DATA_AT + CAPACITY, 0)
        if not self.contents or self.contents[-1] != content:
            self.contents.append(content)
        return self


SCENARIOS: dict[str, tuple[list[int], int]] = {
    "first record": ([], 100),
    "later record": ([10, 20], 100),
    "record behind padding": ([200, 200, 200, 200], 200),
    "record over old ones": ([100, 200, 100, 200, 100, 200], 150),
    "message of three records": ([10], 600),
    "empty message": ([10], 0),
}


def prepared(before: list[int]) -> Pair:
    pair = Pair()
    for size in before:
        assert pair.write(b"b" * size)
        assert pair.read() == b"b" * size
    return pair


def with_torn_stores(contents: list[bytes]) -> Iterator[bytes]:
    """The recorded contents, and between two of them copies that got only so far. Head is one store, never torn."""
    for before, after in itertools.pairwise(contents):
        yield before
        changed = [index for index in range(DATA_AT, len(after)) if before[index] != after[index]]
        for count in range(1, len(changed)):
            torn = bytearray(before)
            for index in changed[:count]:
                torn[index] = after[index]
            yield bytes(torn)
    yield contents[-1]


@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_part_of_its_stores_a_writer_performed_the_reader_sees_the_message_whole_or_not(name: str) -> None:
    before, size = SCENARIOS[name]
    message = random.Random(size).randbytes(size)
    with prepared(before) as pair:
        recorder = Recorder(pair.fd)
        earlier = sys.gettrace()
        sys.settrace(recorder)
        try:
            assert pair.write(message)
        finally:
            sys.settrace(earlier)
        recorder.contents.append(os.pread(pair.fd, DATA_AT + CAPACITY, 0))
    assert len(recorder.contents) > 2
    seen = []
    with prepared(before) as pair:
        for content in with_torn_stores(recorder.contents):
            os.pwrite(pair.fd, content, 0)
            found = pair.reader.read()
            assert found in (None, message)
            seen.append(found is not None)
            if found is not None:
                break
    assert seen[-1]
    assert not any(seen[:-1])
    assert content[HEAD_AT : HEAD_AT + 8] != recorder.contents[0][HEAD_AT : HEAD_AT + 8]
