"""Journal files: what is appended is read, in order and once, whatever happens to the writer, the disk and the name."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgpack
import pytest
from structlog.testing import capture_logs

from asyncpage.config import EngineConfig
from asyncpage.errors import JournalError, UsageError
from asyncpage.pipes.journal.dialect import shapes
from asyncpage.pipes.journal.reader import JournalReader
from asyncpage.pipes.journal.record import BATCH_END, FIRED, SENT, Head, pack_head, unpack_head, unpack_records
from asyncpage.pipes.journal.segment import MAGIC, SEGMENTS, SegmentFiles, read_chunks, segment_path
from asyncpage.pipes.journal.writer import MOST_WAITING_BYTES, JournalWriter
from asyncpage.testing.toy_runner import toy_handshake

MIB = 1 << 20


def head_of(segment: int, recording: bytes = b"r" * 16) -> Head:
    return Head(
        version="0",
        recording=recording,
        segment=segment,
        config=EngineConfig(model="m", served_model_name=("a", "b"), max_model_len=64),
        handshake=toy_handshake(),
        seed=5,
        eos_ids=(1, 2),
        has_tokens=False,
        wall_offset=0.25,
        shapes=shapes(),
    )


def open_writer(path: Path, most_bytes: int = MIB, recording: bytes = b"r" * 16) -> JournalWriter:
    return JournalWriter(SegmentFiles(path, most_bytes), lambda segment: pack_head(head_of(segment, recording)))


def fired(number: int, filler: bytes = b"") -> bytes:
    """A record whose number can be read back; the filler makes it large and does not compress."""
    timer = msgpack.packb((FIRED, 0, 1.5, number))
    return timer + (msgpack.packb((SENT, 0, "x", "y", filler)) if filler else b"")


def numbers_in(reader: JournalReader) -> list[int]:
    return [record.timer for record in reader.records() if record.kind == FIRED]


def test_what_is_appended_is_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writer = open_writer(path)
    for number in range(1000):
        writer.append(fired(number))
    writer.append(msgpack.packb((BATCH_END, 1, 2.5)))
    writer.close()
    writer.close()
    reader = JournalReader(path)
    *_, last = reader.records()
    assert numbers_in(reader) == list(range(1000))
    assert (last.kind, last.actor, last.time) == (BATCH_END, 1, 2.5)
    assert reader.head == head_of(0)
    assert reader.is_whole
    assert reader.bytes_read == reader.size == path.stat().st_size


def test_only_its_owner_may_read_a_journal(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        open_writer(tmp_path / "j").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "j").stat().st_mode) == 0o600


def test_a_recording_keeps_its_newest_records_within_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writer = open_writer(path)
    for number in range(200):
        writer.append(fired(number, os.urandom(20_000)))  # 4 MB in all
    writer.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == SEGMENTS
    assert sum(file.stat().st_size for file in files) <= MIB
    reader = JournalReader(path)
    found = numbers_in(reader)
    assert found == list(range(found[0], 200))
    assert found[0] > 0
    assert not reader.is_whole
    assert [unpack_head(next(read_chunks(file))[0]).segment for file in reader.paths] == list(
        range(reader.head.segment, reader.head.segment + SEGMENTS)
    )


def test_an_earlier_recording_stays_readable_under_a_later_number(tmp_path: Path) -> None:
    path = tmp_path / "j"
    for recording in (1, 2, 3):
        writer = open_writer(path, recording=bytes([recording]) * 16)
        writer.append(fired(recording))
        writer.close()
    assert numbers_in(JournalReader(path)) == [3]
    assert numbers_in(JournalReader(segment_path(path, 1))) == [2]
    assert numbers_in(JournalReader(segment_path(path, 2))) == [1]
    assert all(JournalReader(segment_path(path, number)).is_whole for number in range(3))


def test_segments_behind_a_numbered_one_are_found(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writer = open_writer(path)
    for number in range(30):
        writer.append(fired(number, os.urandom(20_000)))
    writer.close()
    all_of_it = JournalReader(path)
    older = JournalReader(segment_path(path, 1))
    assert older.paths == all_of_it.paths[:-1]
    assert numbers_in(older) == numbers_in(all_of_it)[: len(numbers_in(older))]


@pytest.mark.parametrize("cut", [1, 5, 13, 40])
def test_a_record_that_was_torn_by_a_kill_is_passed_over(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j"
    files = SegmentFiles(path, MIB)
    files.begin(pack_head(head_of(0)))
    files.write(fired(1), lambda: b"")
    whole = path.stat().st_size
    files.write(fired(2, b"long enough to be cut anywhere" * 4), lambda: b"")
    files.close()
    os.truncate(path, whole + cut)
    assert numbers_in(JournalReader(path)) == [1]


def test_a_killed_writer_leaves_all_but_its_last_second(tmp_path: Path) -> None:
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_journal import fired, open_writer
path = Path({str(tmp_path / "j")!r})
writer = open_writer(path)
size = path.stat().st_size
writer.append(fired(7))
while path.stat().st_size == size:  # written by the thread, without a close
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert numbers_in(JournalReader(tmp_path / "j")) == [7]


def test_damage_before_the_end_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "j"
    files = SegmentFiles(path, MIB)
    files.begin(pack_head(head_of(0)))
    at = path.stat().st_size
    files.write(fired(1), lambda: b"")
    files.write(fired(2), lambda: b"")
    files.close()
    data = bytearray(path.read_bytes())
    data[at + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalError, match=f"chunk at byte {at} is not what was written"):
        numbers_in(JournalReader(path))


def test_every_flipped_byte_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    files = SegmentFiles(path, MIB)
    files.begin(pack_head(head_of(0)))
    files.write(fired(1), lambda: b"")
    files.write(fired(2), lambda: b"")
    files.close()
    good = path.read_bytes()
    for at in range(0, len(good), 3):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
        with suppress(JournalError):
            assert numbers_in(JournalReader(path)) in ([1, 2], [1])


@pytest.mark.parametrize(
    "records",
    [
        msgpack.packb((99, 0)),
        msgpack.packb((FIRED, 0, 1.5)),
        msgpack.packb((FIRED, 2, 1.5, 3)),
        msgpack.packb((FIRED, 0, "x", 3)),
        msgpack.packb({"a": 1}),
        msgpack.packb((BATCH_END, 0, 1.5))[:-1],
        b"\xc1",
        b"\x91" * 10_000,
        b"\xdd\xff\xff\xff\xff",
        msgpack.packb(msgpack.ExtType(5, b"x")),
    ],
)
def test_what_is_no_record_is_refused(records: bytes) -> None:
    with pytest.raises(JournalError):
        list(unpack_records(records))


def test_a_chunk_that_claims_less_than_it_unpacks_to_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    bomb = zlib.compress(bytes(10 * MIB), 9)
    header = b"".join(number.to_bytes(4, "little") for number in (len(bomb), 100, zlib.crc32(bomb)))
    path.write_bytes(MAGIC + header + zlib.crc32(header).to_bytes(4, "little") + bomb)
    with pytest.raises(JournalError, match="does not hold 100 bytes"):
        JournalReader(path)


@pytest.mark.parametrize("content", [b"", b"GGUF something else"])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is no journal; it is left alone"):
        SegmentFiles(path, MIB)
    assert path.read_bytes() == content
    with pytest.raises(JournalError, match="not a journal"):
        JournalReader(path)


def test_a_stranger_among_the_older_segments_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "j.3").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"j\.3 exists and is no journal"):
        SegmentFiles(tmp_path / "j", MIB)
    assert (tmp_path / "j.3").read_bytes() == b"mine"


def test_two_writers_do_not_share_a_journal(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "j")
    with pytest.raises(UsageError, match="written by another process"):
        SegmentFiles(tmp_path / "j", MIB)
    writer.close()
    open_writer(tmp_path / "j").close()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        SegmentFiles(tmp_path / "none" / "j", MIB)
    with pytest.raises(JournalError, match="cannot be read: No such file or directory"):
        JournalReader(tmp_path / "none" / "j")


def test_a_full_disk_ends_the_recording_and_nothing_else() -> None:
    class FullDisk(SegmentFiles):
        def __init__(self) -> None:
            self.path = Path("full")
            self.chunk_bytes = 100

        def begin(self, head: bytes) -> None:
            pass

        def write(self, records: bytes, next_head: object) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            raise OSError(28, "No space left on device")

    writer = JournalWriter(FullDisk(), lambda segment: b"")
    writer.append(fired(1))
    writer.close()
    assert writer.is_stopped
    writer.append(fired(2))


def test_a_disk_that_hangs_does_not_keep_the_engine_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncpage.pipes.journal.writer.CLOSE_S", 0.05)
    is_back = threading.Event()

    class HungDisk(SegmentFiles):
        def __init__(self) -> None:
            self.path, self.chunk_bytes = Path("journal"), 1 << 16

        def begin(self, head: bytes) -> None:
            pass

        def write(self, records: bytes, next_head: Callable[[], bytes]) -> None:
            is_back.wait()

        def close(self) -> None:
            pass

    writer = JournalWriter(HungDisk(), lambda segment: b"")
    writer.append(fired(1))
    with capture_logs() as logs:
        writer.close()
    assert [entry["event"] for entry in logs] == ["journal.abandoned"]
    is_back.set()
    writer.close()


def test_a_disk_that_does_not_keep_up_ends_the_recording_with_a_word(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "j", 8 << 30)
    record = msgpack.packb((SENT, 0, "x", "y", bytes(MOST_WAITING_BYTES // 3)))
    for number in range(1000):
        writer.append(fired(number) + record)
        if writer.is_stopped:
            break
    writer.close()
    reader = JournalReader(tmp_path / "j")
    found = numbers_in(reader)
    assert writer.is_stopped
    assert found == list(range(len(found)))
    assert "does not keep up" in reader.stopped


def test_a_head_of_another_version_is_read_as_far_as_it_is_known() -> None:
    plain = msgpack.unpackb(pack_head(head_of(0)))
    del plain["config"]["max_model_len"]
    plain["config"]["of_tomorrow"] = 3
    plain["shapes"]["Handshake"].append("of_tomorrow")
    plain["handshake"].append(4)
    head = unpack_head(msgpack.packb(plain))
    assert head.handshake == toy_handshake()
    assert head.config == EngineConfig(model="m", served_model_name=("a", "b"))


@pytest.mark.parametrize("field", ["config", "handshake", "seed", "shapes"])
def test_a_head_without_what_is_needed_is_refused(field: str) -> None:
    plain = msgpack.unpackb(pack_head(head_of(0)))
    del plain[field]
    with pytest.raises(JournalError, match="head cannot be read"):
        unpack_head(msgpack.packb(plain))
