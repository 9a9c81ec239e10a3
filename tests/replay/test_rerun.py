"""A recorded engine under load is decided again bit for bit, and a changed line is found at its first effect."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest

from asyncpage.actors.scheduler import Scheduler
from asyncpage.core import policy
from asyncpage.core.running import Running
from asyncpage.errors import JournalError
from asyncpage.messages import Admit, Int32
from asyncpage.pipes.journal import segment
from asyncpage.pipes.journal.reader import JournalReader
from asyncpage.pipes.journal.record import DIED, RECEIVED, SENT, TAKEN, Record
from asyncpage.pipes.journal.segment import SegmentFiles, read_chunks
from asyncpage.replay.rerun import Rerun
from tests.replay.recording import CONFIG, VOCAB, prompt_of, record


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("journal") / "run.journal"
    asyncio.run(record(path))
    return path


def names_in(path: Path) -> set[str]:
    return {record.name for record in JournalReader(path).records() if record.kind in (RECEIVED, SENT)}


@pytest.mark.parametrize("index", ["chain", "tree"])
@pytest.mark.parametrize(("scheduling", "victims"), [("fcfs", "last-admitted"), ("longest-prefix", "priority")])
async def test_every_decision_of_a_loaded_engine_is_the_same(
    tmp_path: Path, index: str, scheduling: str, victims: str
) -> None:
    path = tmp_path / "j"
    config = replace(CONFIG, prefix_index=index, scheduling_policy=scheduling, preemption_policy=victims)
    stats = await record(path, config=config)
    assert stats["preemptions"] >= 5
    assert stats["executor_losses"] == 1
    assert names_in(path) >= {"Cancel", "Expired", "StepFailed", "ExecutorLost", "ExecutorReady", "Rewind", "Follow"}
    rerun = Rerun(JournalReader(path))
    assert rerun.run() is None
    told = rerun.summary()
    recorded = [record.name for record in JournalReader(path).records() if record.kind == SENT]
    assert told.decisions == len(recorded)
    assert told.steps == recorded.count("Step") > 150
    # An Admit asks for n choices; the recording's loads ask for at least one each.
    assert told.requests >= 120


async def test_a_replay_at_pipeline_depth_two_and_over_several_segments_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "SEGMENTS", 64)
    config = replace(CONFIG, pipeline_depth=2, journal_bytes=1 << 20, journal_tokens=True)
    path = tmp_path / "j"
    await record(path, config=config)
    reader = JournalReader(path)
    assert len(reader.paths) > 1
    assert reader.is_whole
    assert Rerun(reader).run() is None


def test_deadlines_are_the_films_and_not_the_clocks(journal: Path) -> None:
    """Replayed long after every deadline has passed, no request expires but where it did."""
    expired = [r.plain[0] for r in JournalReader(journal).records() if r.kind == RECEIVED and r.name == "Expired"]
    assert expired
    assert Rerun(JournalReader(journal)).run() is None


def test_another_victim_is_found_at_the_first_settlement_that_names_it(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(policy.VICTIM_POLICIES, "last-admitted", policy.VICTIM_POLICIES["least-computed"])
    difference = Rerun(JournalReader(journal)).run()
    assert difference is not None
    text = str(difference)
    assert difference.recorded is not None
    assert difference.recorded.name == "Reserve"
    assert f"step {difference.step}: the first decision that differs" in text
    assert "the scheduler sends Reserve to the kv_manager" in text
    assert "victims" in text
    # Everything before was equal: the recording's earlier settlements are the replay's.
    assert difference.step == difference.recorded.fields["number"]


def test_a_greedier_column_is_found_with_both_values(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wants = Running.wants

    def more(self: Running, most: int = 0) -> Int32:
        return wants(self, most and most - 1)  # the long-prefill share, one token less

    monkeypatch.setattr(Running, "wants", more)
    difference = Rerun(JournalReader(journal)).run()
    assert difference is not None
    lines = str(difference).splitlines()
    at = next(number for number, line in enumerate(lines) if line.strip().startswith("wants["))
    assert lines[at + 1].split() == ["recorded", "30"]
    assert lines[at + 2].split() == ["today", "29"]


def test_a_message_more_and_a_message_less_are_differences(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    admit = Scheduler._admit

    def twice(self: Scheduler, message: Admit) -> None:
        admit(self, message)
        self._refuse(message, self._reason_to_refuse(message))  # type: ignore[arg-type]  # only that it is sent

    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "_refuse", lambda self, message, failure: self._frontends[0].send(message))
        patch.setattr(Scheduler, "_admit", twice)
        difference = Rerun(JournalReader(journal)).run()
        assert difference is not None
        assert "today     the scheduler sends Admit to the frontend" in str(difference)
    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "_admit", lambda self, message: None)
        difference = Rerun(JournalReader(journal)).run()
        assert difference is not None
        assert "recorded  the scheduler sends Accepted to the frontend" in str(difference)
        assert "today     nothing more" in str(difference)


def test_a_death_today_is_a_difference(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(self: Scheduler, message: object) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(Scheduler, "_executor_lost", die)
    difference = Rerun(JournalReader(journal)).run()
    assert difference is not None
    assert "today     the scheduler dies of ZeroDivisionError: of all things" in str(difference)
    assert "recorded  the scheduler sends Rewind to the kv_manager" in str(difference)


async def test_a_recorded_death_is_reproduced_and_its_mending_is_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: Scheduler, message: object) -> None:
        raise ZeroDivisionError("of all things")

    path = tmp_path / "j"
    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "_executor_lost", die)
        with pytest.raises(TimeoutError):  # the dead do not answer a ping
            await record(path, ping_s=0.1)
        deaths = [record.name for record in JournalReader(path).records() if record.kind == DIED]
        assert deaths == ["ZeroDivisionError: of all things"]
        assert Rerun(JournalReader(path)).run() is None
    difference = Rerun(JournalReader(path)).run()
    assert difference is not None
    assert "recorded  the scheduler dies of ZeroDivisionError: of all things" in str(difference)


def all_records(path: Path) -> bytes:
    return b"".join(data for data, _ in read_chunks(path))


def contains_prompt(records: bytes) -> bool:
    """Four neighbouring ids of a prompt, as a column or as msgpack writes them."""
    ids = prompt_of(3, 60)[10:14]
    column = np.array(ids, dtype=np.int32).tobytes()
    return column in records or b"".join(map(msgpack.packb, ids)) in records


async def test_a_journal_holds_no_prompt_unless_it_was_asked_for(journal: Path, tmp_path: Path) -> None:
    hidden = all_records(journal)
    assert not contains_prompt(hidden)
    for text in (b"never said", b"a tenant"):
        assert text not in hidden
    assert b"label-3" in hidden
    await record(tmp_path / "j", config=replace(CONFIG, journal_tokens=True))
    told = all_records(tmp_path / "j")
    assert contains_prompt(told)
    assert b"a tenant" not in told


def test_a_recorded_id_is_the_same_pseudonym_wherever_it_stands(journal: Path) -> None:
    admits = [r.plain for r in JournalReader(journal).records() if r.kind == RECEIVED and r.name == "Admit"]
    prompts = [np.frombuffer(plain[1], dtype=np.int32) for plain in admits]
    assert all(((prompt >= 0) & (prompt < VOCAB)).all() for prompt in prompts)
    # Six conversations: prompts that begin with the same id go on alike as far as both have the conversation.
    for one in prompts:
        for other in prompts:
            common = min(len(one), len(other)) - 1
            if one[0] == other[0] and common > 1:
                assert (one[:common] == other[:common]).all()
    assert len({int(prompt[0]) for prompt in prompts if len(prompt) > 2}) == 6


def test_what_was_cut_off_with_the_last_chunk_is_no_difference(journal: Path, tmp_path: Path) -> None:
    cut = tmp_path / "j"
    cut.write_bytes(journal.read_bytes()[:-100])
    rerun = Rerun(JournalReader(cut))
    assert rerun.run() is None
    assert rerun.summary().steps > 0


async def test_a_journal_without_its_beginning_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "j"
    await record(path, requests=60)
    head = msgpack.unpackb(next(read_chunks(path))[0])
    records = [data for data, _ in read_chunks(path)][1:]
    head["segment"] = 3
    _write_segment(path, [msgpack.packb(head), *records])
    with pytest.raises(JournalError, match=r"lost its beginning.*--list.*--journal-bytes"):
        Rerun(JournalReader(path))


def test_a_journal_of_a_version_with_other_fields_is_compared_by_the_fields_of_both(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One field more in an input and in a decision, and one that another version had not yet."""

    def of_another_version(item: list[object]) -> list[object]:
        match item:
            case [0, _, _, "Cancel", [request]]:
                item[4] = ["colour", request]
            case [5, _, _, "Expect", bytes() as packed]:
                request, sampling, prompt_tokens, _ = msgpack.unpackb(packed)
                item[4] = msgpack.packb([prompt_tokens, "colour", sampling, request])
        return item

    head, *chunks = [data for data, _ in read_chunks(journal)]
    plain = msgpack.unpackb(head)
    plain["shapes"]["Cancel"] = ["colour", "request"]
    plain["shapes"]["Expect"] = ["prompt_tokens", "colour", "sampling", "request"]
    path = tmp_path / "j"
    path.touch()
    records: list[bytes] = []
    for chunk in chunks:
        unpacker = msgpack.Unpacker()
        unpacker.feed(chunk)
        records.append(b"".join(msgpack.packb(of_another_version(item)) for item in unpacker))
    _write_segment(path, [msgpack.packb(plain), *records])
    assert Rerun(JournalReader(path)).run() is None
    monkeypatch.setattr(Scheduler, "_client_ended", lambda self, message: None)
    assert Rerun(JournalReader(path)).run() is not None


def test_an_input_that_today_does_not_take_is_named(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = JournalReader.records

    def renamed(self: JournalReader):  # type: ignore[no-untyped-def]  # the generator's own type
        for item in whole(self):
            yield item._replace(name="Of1999") if item.name == "Cancel" else item

    monkeypatch.setattr(JournalReader, "records", renamed)
    with pytest.raises(JournalError, match="does not take the recorded Of1999"):
        Rerun(JournalReader(journal)).run()


def test_a_recorded_cause_that_today_does_not_have_is_a_difference(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = JournalReader.records

    def extra(self: JournalReader):  # type: ignore[no-untyped-def]  # the generator's own type
        for number, item in enumerate(whole(self)):
            if number == 40:
                yield Record(TAKEN, 0, item.time)
                yield Record(TAKEN, 0, item.time)
            yield item

    monkeypatch.setattr(JournalReader, "records", extra)
    difference = Rerun(JournalReader(journal)).run()
    assert difference is not None


def _write_segment(path: Path, chunks: list[bytes]) -> None:
    path.unlink()
    files = SegmentFiles(path, 1 << 20)
    files.begin(chunks[0])
    for chunk in chunks[1:]:
        files.write(chunk, lambda: b"")
    files.close()
