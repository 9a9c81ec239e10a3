"""The engine and its journal: where it may be, what a failed start leaves, what an engine without one does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from asyncpage.actors.recorded import Recorded
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.errors import UsageError
from asyncpage.pipes.journal.reader import JournalReader
from asyncpage.pipes.journal.record import RECEIVED, RESUMED
from asyncpage.pipes.journal.segment import SegmentFiles
from asyncpage.replay.rerun import Rerun
from asyncpage.simulation.stand_in import stand_in
from tests.replay.recording import CONFIG


async def test_a_journal_that_cannot_be_written_is_told_before_a_model_is_looked_for(tmp_path: Path) -> None:
    config = replace(CONFIG, model="no such model", journal=str(tmp_path / "none" / "j"))
    with pytest.raises(UsageError, match=r"--journal .* cannot be written"):
        await AsyncEngine.start(config)


async def test_a_start_that_fails_lets_go_of_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "j"
    config = replace(CONFIG, journal=str(path), scheduling_policy="of nobody")
    with pytest.raises(UsageError, match="of nobody"):
        await AsyncEngine.start(config, stand_in=stand_in(config))
    SegmentFiles(path, 1 << 20).close()  # nobody holds the lock


async def test_a_journal_is_whole_when_its_engine_has_stopped(tmp_path: Path) -> None:
    path = tmp_path / "j"
    config = replace(CONFIG, journal=str(path))
    engine = await AsyncEngine.start(config, stand_in=stand_in(config))
    async for _ in engine.generate([300, 301]):
        break
    await engine.stop()
    await engine.stop()
    head = JournalReader(path).head
    assert (head.config, head.seed, head.handshake) == (config, 5, engine.handshake)
    assert [record.name for record in JournalReader(path).records() if record.name == "Admit"] == ["Admit"]


async def test_without_a_journal_nothing_stands_between_actors(tmp_path: Path) -> None:
    engine = await AsyncEngine.start(CONFIG, stand_in=stand_in(CONFIG))
    try:
        assert engine.house.scheduler in engine.house.actors
        assert not [actor for actor in engine.house.actors if isinstance(actor, Recorded)]
    finally:
        await engine.stop()


async def test_a_journal_of_an_engine_that_was_watched_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncpage.core.block_chart.BLOCKS_AT_ONCE", 8)  # so that the picture is drawn in slices
    path = tmp_path / "j"
    config = replace(CONFIG, journal=str(path))
    engine = await AsyncEngine.start(config, stand_in=stand_in(config))
    engine.lookout.open()
    async for part in engine.generate(list(range(300, 340)), SamplingParams(max_tokens=60)):
        if part.token_ids:
            await engine.lookout.look()
            await engine.lookout.look_at(3)
    await engine.stop()
    records = list(JournalReader(path).records())
    assert {record.name for record in records if record.kind == RECEIVED} >= {"Ask", "Admit"}
    assert any(record.kind == RESUMED for record in records)
    assert Rerun(JournalReader(path)).run() is None
