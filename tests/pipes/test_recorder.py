"""The recorder: what two actors do becomes records, and nothing it meets stops them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import UsageError
from asyncpage.messages import NO_PARENT, Admit, BlockLabel, Cancel, RequestId, RequestOptions, Rewind, Shelved
from asyncpage.pipes.journal.reader import JournalReader
from asyncpage.pipes.journal.record import (
    BATCH_END,
    DIED,
    FIRED,
    RECEIVED,
    RESUMED,
    ROOT,
    SENT,
    TAKEN,
    Record,
)
from asyncpage.pipes.journal.recorder import Recorder
from asyncpage.pipes.journal.segment import SegmentFiles
from asyncpage.testing.clock import FakeClock
from asyncpage.testing.toy_runner import toy_handshake


def recorder_of(path: Path, clock: FakeClock, **settings: bool) -> Recorder:
    config = EngineConfig(journal=str(path), **settings)
    return Recorder(
        SegmentFiles(path, 1 << 20), clock, config=config, handshake=toy_handshake(), seed=3, eos_ids=(5, 500)
    )


def test_causes_and_effects_are_written_in_order_with_their_times(tmp_path: Path) -> None:
    clock = FakeClock(now=100.0, wall=1_000_100.0)
    recorder = recorder_of(tmp_path / "j", clock)
    cancel, rewind = Cancel(RequestId(4)), Rewind(forget=True)
    recorder.received("scheduler", cancel)
    clock.advance(0.5)
    assert (recorder.now(), recorder.wall()) == (100.0, 1_000_100.0)  # still until the next cause
    recorder.sent("scheduler", "kv_manager", rewind)
    recorder.batch_ended("scheduler")
    assert recorder.now() == 100.5
    recorder.received("kv_manager", rewind)
    recorder.received("kv_manager", Rewind(forget=True))  # an equal one, but from elsewhere
    recorder.fired("scheduler", 7)
    recorder.resumed("kv_manager")
    recorder.died("kv_manager", ValueError("why"))
    recorder.close()
    reader = JournalReader(tmp_path / "j")
    assert list(reader.records()) == [
        Record(RECEIVED, 0, 100.0, "Cancel", plain=(4,)),
        Record(SENT, 0, name="Rewind", to="kv_manager", packed=b"\x91\xc3"),
        Record(BATCH_END, 0, 100.5),
        Record(TAKEN, 1, 100.5),
        Record(RECEIVED, 1, 100.5, "Rewind", plain=(True,)),
        Record(FIRED, 0, 100.5, timer=7),
        Record(RESUMED, 1, 100.5),
        Record(DIED, 1, name="ValueError: why"),
    ]
    assert reader.head.wall_offset == 1_000_000.0
    assert reader.head.seed == 3


def test_the_heads_end_ids_have_the_pseudonyms_of_the_records(tmp_path: Path) -> None:
    recorder_of(tmp_path / "hidden", FakeClock()).close()
    recorder_of(tmp_path / "told", FakeClock(), journal_tokens=True).close()
    hidden, told = JournalReader(tmp_path / "hidden").head, JournalReader(tmp_path / "told").head
    assert told.eos_ids == (5, 500)
    assert told.has_tokens
    assert not hidden.has_tokens
    assert hidden.eos_ids[1] == 500  # outside this vocabulary of 97, where every id is its own pseudonym
    assert 0 <= hidden.eos_ids[0] < 97


def test_two_recordings_have_different_pseudonyms(tmp_path: Path) -> None:
    def first_eos(number: int) -> int:
        recorder_of(tmp_path / str(number), FakeClock()).close()
        return JournalReader(tmp_path / str(number)).head.eos_ids[0]

    # 20 draws from 97 ids are never all the same in the life of anything.
    assert len({first_eos(number) for number in range(20)}) > 1


def test_of_first_blocks_from_files_it_is_told_whose_they_are_once_both_have_come(tmp_path: Path) -> None:
    recorder = Recorder(
        SegmentFiles(tmp_path / "j", 1 << 20),
        FakeClock(),
        config=EngineConfig(),
        handshake=toy_handshake(),
        seed=3,
        eos_ids=(),
        first_name=lambda salt, adapter, tokens: f"{salt}|{adapter}|".encode() + tokens,
    )

    def admit(salt: str) -> Admit:
        return Admit(RequestId(1), b"", (), SamplingParams(), RequestOptions(cache_salt=salt))

    def label(name: bytes, group: int = 0, parent: bytes = NO_PARENT) -> BlockLabel:
        return BlockLabel(name, group, parent, b"\x01\0\0\0", b"")

    last = b"\x01\0\0\0"
    first = [b"||" + last, b"early secret||" + last, b"late secret||" + last, b"nobody's||" + last]
    recorder.received("scheduler", admit("early secret"))
    recorder.received("kv_manager", Shelved((*map(label, first), label(first[0], 1), label(b"n" * 32, 0, first[0]))))
    recorder.received("scheduler", admit("late secret"))
    recorder.received("scheduler", admit("late secret"))
    recorder.close()
    records = list(JournalReader(tmp_path / "j").records())
    assert [item.kind for item in records] == [RECEIVED, ROOT, ROOT, RECEIVED, ROOT, RECEIVED, RECEIVED]
    roots = [item for item in records if item.kind == ROOT]
    shelved = next(item for item in records if item.name == "Shelved").plain[0]
    names = [plain[0] for plain in shelved]  # as the labels of the Shelved tell them
    salts = {item.plain[4][2] for item in records if item.name == "Admit"}  # as the options of the Admits tell them
    assert {item.packed for item in roots} == set(names[:3])
    assert roots[2].packed == names[2]
    assert {item.name for item in roots} == salts | {""}
    assert [plain[2] == NO_PARENT for plain in shelved] == [True] * 5 + [False]
    assert shelved[5][2] == names[0]
    assert not [item for item in records if b"secret" in repr(item).encode()]


@dataclass(frozen=True)
class Strange:
    what: object


def test_a_message_that_cannot_be_written_ends_the_recording_and_is_passed_on(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path / "j", FakeClock())
    recorder.batch_ended("scheduler")
    recorder.received("scheduler", Strange(object()))
    recorder.batch_ended("scheduler")
    recorder.close()
    reader = JournalReader(tmp_path / "j")
    assert [item.kind for item in reader.records()] == [BATCH_END]
    assert "cannot hold a Strange" in reader.stopped


def test_a_recording_that_cannot_begin_is_the_users_to_mend(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "folder")
    with pytest.raises(UsageError):
        recorder_of(tmp_path / "folder", FakeClock())
