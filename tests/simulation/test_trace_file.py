"""Trace files: what a line becomes, what lines share, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from asyncpage.errors import UsageError
from asyncpage.simulation.trace import Turn
from asyncpage.simulation.trace_file import file_trace


def read(path: Path, *lines: object) -> list[tuple[float, Turn]]:
    file = path / "trace.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    made = file_trace(file, end_id=2047)
    assert made.has_times
    assert made.requests == sum(1 for line in lines if line)
    return [(arrival.at_s, next(arrival.session)) for arrival in made.arrivals]


def common(a: Turn, b: Turn) -> int:
    size = min(len(a.prompt), len(b.prompt))
    differing = np.flatnonzero(a.prompt[:size] != b.prompt[:size])
    return int(differing[0]) if len(differing) else size


def test_lines_become_requests_at_their_times(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {"arrival_s": 0, "prompt_tokens": [7, 900000, 3], "output_tokens": 5},
        "",
        {"arrival_s": 1.25, "prompt_tokens": 40, "output_tokens": 6, "priority": -2},
    )
    (first_s, first), (second_s, second) = found
    assert (first_s, second_s) == (0.0, 1.25)
    assert first.prompt.tolist() == [7, 900000, 3]
    assert (first.output_tokens, first.is_last, first.priority) == (5, True, 0)
    assert (len(second.prompt), second.output_tokens, second.priority) == (40, 6, -2)
    assert 256 <= second.prompt.min() <= second.prompt.max() < 2047


def test_prompts_of_a_group_share_their_beginning_and_no_more(tmp_path: Path) -> None:
    def line(length: int, group: str | None, shared: int | None = None) -> dict[str, object]:
        fields = {"prefix_group": group, "prefix_tokens": shared}
        return {
            "arrival_s": 0,
            "prompt_tokens": length,
            "output_tokens": 1,
            **{key: value for key, value in fields.items() if value is not None},
        }

    found = read(
        tmp_path,
        line(100, "a", 60),
        line(90, "a", 60),
        line(50, "a"),
        line(70, "a"),
        line(100, "b", 60),
        line(100, None),
    )
    a, other, short, long, b, alone = (turn for _, turn in found)
    assert common(a, other) == 60
    assert common(a, short) == 50
    assert common(short, long) == 50  # all of a prompt is the group's when nothing else is said
    assert common(a, long) == 60
    assert common(a, b) == common(a, alone) == 0


def test_published_traces_share_what_their_hash_ids_share(tmp_path: Path) -> None:
    def line(ms: int, length: int, *ids: int) -> dict[str, object]:
        return {"timestamp": ms, "input_length": length, "output_length": 9, "hash_ids": list(ids)}

    found = read(tmp_path, line(0, 1300, 4, 8, 1), line(500, 1200, 4, 8, 2), line(2750, 700, 4, 9))
    (_, first), (second_s, second), (third_s, third) = found
    assert (second_s, third_s) == (0.5, 2.75)
    assert [len(turn.prompt) for turn in (first, second, third)] == [1300, 1200, 700]
    assert (common(first, second), common(first, third)) == (1024, 512)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("[]", "no JSON object"),
        ("{", "line 2"),
        ({"prompt_tokens": 3, "output_tokens": 1}, "neither arrival_s nor timestamp"),
        ({"arrival_s": -1, "prompt_tokens": 3, "output_tokens": 1}, "arrival_s must be"),
        ({"arrival_s": 1, "prompt_tokens": 0, "output_tokens": 1}, "prompt_tokens must be"),
        ({"arrival_s": 1, "prompt_tokens": [1, True], "output_tokens": 1}, "prompt_tokens must be"),
        ({"arrival_s": 1, "prompt_tokens": [], "output_tokens": 1}, "prompt_tokens must be"),
        ({"arrival_s": 1, "prompt_tokens": 3}, "output_tokens must be"),
        ({"arrival_s": 1, "prompt_tokens": 3, "output_tokens": 1, "outptu": 4}, "outptu is none of"),
        ({"arrival_s": 0.2, "prompt_tokens": 3, "output_tokens": 1}, "sort the file by time"),
        ({"timestamp": 600, "input_length": 5, "output_length": 1, "hash_ids": [1, 2]}, "hash_ids must be"),
    ],
)
def test_a_line_that_is_no_request_is_refused_by_its_number(tmp_path: Path, line: object, match: str) -> None:
    with pytest.raises(UsageError, match=match) as refused:
        read(tmp_path, {"arrival_s": 0.5, "prompt_tokens": 3, "output_tokens": 1}, line)
    assert "line 2" in str(refused.value)


def test_a_file_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        file_trace(tmp_path / "none.jsonl", end_id=2047)
    with pytest.raises(UsageError, match="is empty"):
        read(tmp_path)
