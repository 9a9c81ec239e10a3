"""The output of a batch: kept, gone on with, repaired, and never overwritten."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from asyncpage.cli.batch.result_file import ResultFile
from asyncpage.errors import AsyncpageError, UsageError

NAMES = ("a", "b", "ü")


def result(name: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "batch_req_1",
        "custom_id": name,
        "response": {"status_code": 200, "body": "x"},
        "error": None,
        **more,
    }


def filled(path: Path, *names: str) -> bytes:
    file = ResultFile(path, NAMES)
    for name in names:
        file.write(result(name))
    file.close()
    return path.read_bytes()


def test_answers_are_lines_and_what_is_there_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    before = filled(path, "a", "ü")
    file = ResultFile(path, NAMES)
    assert (file.answered, file.repaired) == ({"a", "ü"}, False)
    file.write(result("b", text="half \ud800"))
    file.close()
    lines = path.read_bytes().splitlines(keepends=True)
    assert b"".join(lines[:2]) == before
    assert [json.loads(line)["custom_id"] for line in lines] == ["a", "ü", "b"]
    assert "ü" in before.decode()


def test_a_line_that_was_cut_off_anywhere_is_taken_away_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    whole = filled(path, "a", "b")
    for place in range(len(whole) + 1):
        path.write_bytes(whole[:place])
        file = ResultFile(path, NAMES)
        file.close()
        # An answer that lacks nothing but the end of its line is whole.
        answered = [line for line in whole.splitlines(keepends=True) if whole[:place].find(line.rstrip()) >= 0]
        assert len(file.answered) == len(answered)
        assert path.read_bytes() == b"".join(answered)
        assert file.repaired == (place > len(b"".join(answered)))


@pytest.mark.parametrize(
    "text",
    [
        "notes of mine\n",
        "notes of mine",
        '{"id": 5}\n',
        json.dumps(result("stranger")) + "\n",
        json.dumps(result("a")) + "\nnotes",
        json.dumps({"custom_id": ["a"], "response": None, "error": None}),
        "[" * 100_000,
    ],
)
def test_a_file_of_anything_else_is_refused_and_stays_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match="no answer to a request of this batch"):
        ResultFile(path, NAMES)
    assert path.read_text() == text


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    first = ResultFile(tmp_path / "out.jsonl", NAMES)
    with pytest.raises(UsageError, match="by another run"):
        ResultFile(tmp_path / "out.jsonl", NAMES)
    first.close()
    ResultFile(tmp_path / "out.jsonl", NAMES).close()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "out.jsonl"):
        with pytest.raises(UsageError, match="cannot be written"):
            ResultFile(path, NAMES)


def test_a_full_disk_ends_the_run_and_the_next_one_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    size = len(filled(path, "a"))
    file = ResultFile(path, NAMES)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))  # as a full disk: part of a line fits
    try:
        with pytest.raises(AsyncpageError, match="goes on when it can"):
            file.write(result("b"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    file.close()
    file = ResultFile(path, NAMES)
    assert (file.answered, file.repaired) == ({"a"}, True)
    file.close()
    assert path.stat().st_size == size
