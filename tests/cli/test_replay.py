"""`asyncpage replay` on a recorded engine: exit codes, and what people read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgpack
import pytest

from asyncpage.cli.main import main
from asyncpage.core import policy
from asyncpage.pipes.journal.reader import JournalReader
from asyncpage.pipes.journal.record import SENT
from asyncpage.pipes.journal.segment import SegmentFiles, read_chunks
from tests.replay.recording import record


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("journal") / "run.journal"
    asyncio.run(record(path, requests=60))
    return path


def test_equal_decisions_are_counted_and_exit_with_0(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(journal)]) == 0
    out, err = capsys.readouterr()
    sent = [item for item in JournalReader(journal).records() if item.kind == SENT]
    assert out.startswith("every decision is the same: ")
    assert f"{len(sent)} decisions over" in out
    assert "replaying 100%" in err


def test_the_first_other_decision_is_shown_and_exits_with_1(
    journal: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(policy.VICTIM_POLICIES, "last-admitted", policy.VICTIM_POLICIES["least-computed"])
    assert main(["replay", str(journal)]) == 1
    out = capsys.readouterr().out
    assert "the first decision that differs" in out
    assert "recorded  " in out
    assert "today     " in out
    assert "were the same" in out


def test_the_journal_is_printed_a_line_a_message(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(journal), "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    sent = [item for item in JournalReader(journal).records() if item.kind == SENT]
    assert sum("sent  " in line for line in lines) == len(sent)
    text = "\n".join(lines)
    for part in ("got   Admit", "label-3: ", "Granted 1: ", "Step 1 of epoch 1", "ExecutorLost epoch=", "stored (gpu)"):
        assert part in text
    times = [float(line.split()[0]) for line in lines]
    assert times == sorted(times)


def test_a_request_is_explained_by_label_and_by_number(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(journal), "--why", "label-3"]) == 0
    by_label = json.loads(capsys.readouterr().out)
    assert by_label["label"] == "label-3"
    assert 0 <= by_label["matched_tokens"] < by_label["known_tokens"]
    assert main(["replay", str(journal), "--why", str(by_label["request"])]) == 0
    assert json.loads(capsys.readouterr().out)["request"] == by_label["request"]


def test_a_request_that_is_not_there_is_told_with_some_that_are(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(journal), "--why", "nobody"]) == 1
    assert "request nobody is not in this journal; it has label-" in capsys.readouterr().err


def test_a_journal_without_its_beginning_can_be_read_but_not_replayed(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "late"
    head, *chunks = [data for data, _ in read_chunks(journal)]
    files = SegmentFiles(path, 1 << 20)
    files.begin(msgpack.packb({**msgpack.unpackb(head), "segment": 2}))
    for chunk in chunks:
        files.write(chunk, lambda: b"")
    files.close()
    assert main(["replay", str(path)]) == 1
    assert "has lost its beginning" in capsys.readouterr().err
    assert main(["replay", str(path), "--list"]) == 0
    assert "Granted 1: " in capsys.readouterr().out


def test_a_file_that_is_missing_or_no_journal_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path / "none")]) == 2
    assert "there is no journal" in capsys.readouterr().err
    (tmp_path / "text").write_text("hello")
    assert main(["replay", str(tmp_path / "text")]) == 1
    assert "is not a journal" in capsys.readouterr().err


def test_help_teaches_by_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["replay", "--help"])
    out = capsys.readouterr().out
    for part in ("asyncpage serve --journal run.journal", "--why", "--list", "exit codes: 0"):
        assert part in out
