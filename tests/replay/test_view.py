"""Recorded messages by field name, and where two of them differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncpage.core.sampling import SamplingParams
from asyncpage.messages import EMPTY, Expect, NewRow, RequestId, Step
from asyncpage.pipes.journal.dialect import journal_dialect, shapes
from asyncpage.pipes.journal.pseudonym import AsRecorded
from asyncpage.pipes.record import unpack_plain
from asyncpage.replay.difference import Decision, Difference
from asyncpage.replay.view import differences, shown, view

DIALECT = journal_dialect(AsRecorded())


def viewed(message: object, named: dict[str, tuple[str, ...]] | None = None) -> Any:
    return view(type(message).__name__, unpack_plain(DIALECT.pack(message)), named or shapes())


def step(*, counts: tuple[int, ...] = (1, 1), seed: int = 3, temperature: float = 0.5) -> Step:
    new = NewRow(1, RequestId(9), b"", 0, 0, (), SamplingParams(temperature=temperature), seed)
    return Step(4, 1, np.array([0, 1], dtype=np.int32), np.array(counts, dtype=np.int32), EMPTY, (new,))


def test_fields_have_names_and_columns_are_lists() -> None:
    fields = viewed(step())
    assert (fields["number"], fields["rows"], fields["counts"], fields["blocks"]) == (4, [0, 1], [1, 1], [])
    assert fields["added"][0]["sampling"] == {"temperature": 0.5}
    assert fields["added"][0]["request"] == 9


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (step(), []),
        (step(counts=(1, 2)), [("counts[1]", 1, 2)]),
        (step(seed=4), [("added[0].seed", 3, 4)]),
        (step(temperature=1.0), [("added[0].sampling", {"temperature": 0.5}, {})]),
        (step(counts=(1, 1, 1)), [("counts", [1, 1], [1, 1, 1])]),
    ],
)
def test_differences_are_told_with_their_place(other: Step, expected: list[Any]) -> None:
    assert list(differences(viewed(step()), viewed(other))) == expected


def test_a_field_that_only_one_version_has_is_no_difference() -> None:
    expect = Expect(RequestId(3), SamplingParams(), 7)
    plain = unpack_plain(DIALECT.pack(expect))
    older = view("Expect", (*plain[:3], "colour"), {"Expect": ("request", "sampling", "prompt_tokens", "colour")})
    assert not list(differences(older, viewed(expect)))
    other = view("Expect", (3, {}, 8, "colour"), {"Expect": ("request", "sampling", "prompt_tokens", "colour")})
    assert list(differences(other, viewed(expect))) == [("prompt_tokens", 8, 7)]


def test_a_long_value_is_shown_in_a_line_and_with_its_length() -> None:
    assert shown([1, 2]) == "[1, 2]"
    assert shown(b"\x01\xff") == "01ff"
    text = shown(list(range(1000)))
    assert len(text) < 110
    assert text.startswith("[0, 1, 2")
    assert text.endswith("... (4890 characters)")


def test_a_difference_reads_as_one_block_with_both_sides() -> None:
    one = Decision("scheduler", "executor", "Step", viewed(step()))
    other = Decision("scheduler", "executor", "Step", viewed(step(counts=(1, 5))))
    assert str(Difference(4, 17, 0.25, "the scheduler got Granted 4", one, other)).splitlines() == [
        "step 4: the first decision that differs, 0.250000 s after the recording began (record 17)",
        "  after     the scheduler got Granted 4",
        "  recorded  the scheduler sends Step to the executor",
        "  today     the scheduler sends Step to the executor",
        "    counts[1]",
        "      recorded  1",
        "      today     5",
    ]
    lines = str(Difference(4, 17, 0.25, "nothing", one, None)).splitlines()
    assert lines[-1] == "  today     nothing more"
    assert "      counts = [1, 1]" in lines


def test_a_difference_in_many_places_stays_readable() -> None:
    one = Decision("scheduler", "executor", "Step", viewed(step(counts=tuple(range(500)))))
    other = Decision("scheduler", "executor", "Step", viewed(step(counts=tuple(range(1, 501)))))
    lines = str(Difference(4, 17, 0.25, "nothing", one, other)).splitlines()
    assert len(lines) < 50
    assert lines[-1] == "    ... and 488 more places"
