"""The input of a batch: what has no name of its own is refused before anything runs, what cannot be sent is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asyncpage.cli.batch.request_line import BatchRequest, check_requests, read_requests
from asyncpage.errors import UsageError

GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def written(folder: Path, *lines: object) -> Path:
    path = folder / "in.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def test_every_line_is_a_request_under_its_name_and_blank_lines_are_none(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD, "", "  ", {**GOOD, "custom_id": "ü"}, "")
    assert check_requests(path) == ["a", "ü"]
    assert list(read_requests(path)) == [
        BatchRequest("a", "/v1/completions", {"prompt": "x"}),
        BatchRequest("ü", "/v1/completions", {"prompt": "x"}),
    ]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{"], "line 1 is not JSON"),
        ([GOOD, "[1]"], "line 2 must be a JSON object"),
        ([GOOD, "[" * 100_000], "line 2 is nested more than"),
        ([{"method": "POST"}], "line 1 has no custom_id"),
        ([{**GOOD, "custom_id": 5}], "line 1 has no custom_id"),
        ([{**GOOD, "custom_id": ""}], "line 1 has no custom_id"),
        ([GOOD, {**GOOD, "custom_id": "b"}, GOOD], "line 3 has the custom_id 'a' of line 1"),
        (["{", "{"], "line 1 is not JSON.*line 2 is not JSON"),
        ([], "holds no request"),
        ([""], "holds no request"),
    ],
)
def test_a_file_with_lines_that_no_answer_could_be_found_for_is_refused(
    tmp_path: Path, lines: list[object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        check_requests(written(tmp_path, *lines))


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            check_requests(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "GET"}, "method must be POST"),
        ({"url": "/v1/models"}, "url must be one of /v1/chat/completions"),
        ({"url": None}, "url must be one of"),
        ({"url": ["/v1/completions"]}, "url must be one of"),
        ({"body": None}, "body must be an object, got null"),
        ({"body": "{}"}, "body must be an object, got a string"),
        ({"body": {"prompt": "x", "stream": True}}, "not streamed"),
    ],
)
def test_a_request_that_cannot_be_sent_says_why_and_keeps_its_name(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path = written(tmp_path, {**GOOD, **changes})
    assert check_requests(path) == ["a"]
    (request,) = read_requests(path)
    assert request.custom_id == "a"
    assert said in (request.fault or "")
