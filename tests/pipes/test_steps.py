"""Steps in numbers, against a recording made by hand whose every number is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import JournalError
from asyncpage.messages import EMPTY, Cancel, NewRow, RequestId, Step, StepDone
from asyncpage.pipes.journal.dialect import journal_dialect
from asyncpage.pipes.journal.pseudonym import AsRecorded
from asyncpage.pipes.journal.record import BATCH_END, RECEIVED, SENT, pack_head
from asyncpage.pipes.journal.segment import SegmentFiles
from asyncpage.pipes.journal.steps import RecordedStep, journal_steps
from tests.pipes.test_journal import head_of

DIALECT = journal_dialect(AsRecorded())


def column(*numbers: int) -> Any:
    return np.array(numbers, dtype=np.int32)


def sent(number: int, rows: tuple[int, ...], counts: tuple[int, ...], *, epoch: int = 1, **added: int) -> bytes:
    """`added`: computed tokens of new rows, as r0=12."""
    new = tuple(
        NewRow(int(row[1:]), RequestId(1), b"", 0, done, (), SamplingParams(), 0) for row, done in added.items()
    )
    step = Step(number, epoch, column(*rows), column(*counts), EMPTY, new)
    return msgpack.packb((SENT, 0, "executor", "Step", DIALECT.pack(step)))


def got(time: float, message: object) -> bytes:
    return msgpack.packb((RECEIVED, 0, time, type(message).__name__, DIALECT.plain(message)))


def done(time: float, number: int, rows: tuple[int, ...], *, epoch: int = 1) -> bytes:
    return got(time, StepDone(number, epoch, column(*rows), column(*(1 for _ in rows)), column(*rows)))


def at(time: float) -> bytes:
    return msgpack.packb((BATCH_END, 0, time))


def steps_of(path: Path, *records: bytes) -> list[RecordedStep]:
    files = SegmentFiles(path / "j", 1 << 20)
    files.begin(pack_head(head_of(0)))
    files.write(b"".join(records), lambda: b"")
    files.close()
    return list(journal_steps(path / "j"))


def test_each_step_is_told_with_its_tokens_context_and_times(tmp_path: Path) -> None:
    assert steps_of(
        tmp_path,
        at(10.0),
        sent(1, (0, 1), (30, 5), r0=0, r1=16),
        done(10.5, 1, (0, 1)),
        at(10.625),
        sent(2, (0, 1), (1, 1)),
        done(11.0, 2, (0, 1)),
    ) == [
        RecordedStep(1, tokens=35, context=30 + 21, rows=2, seconds=0.5, gap_s=None, gap_rows=0),
        RecordedStep(2, tokens=2, context=31 + 22, rows=2, seconds=0.375, gap_s=0.125, gap_rows=2),
    ]


def test_a_gap_is_told_only_where_an_answer_led_to_the_step(tmp_path: Path) -> None:
    found = steps_of(
        tmp_path,
        at(1.0),
        sent(1, (0,), (4,), r0=0),
        done(1.5, 1, (0,)),
        got(7.0, Cancel(RequestId(5))),  # idle until something came
        at(7.25),
        sent(2, (0,), (1,)),
        at(7.5),
        sent(3, (0,), (1,)),  # two in flight
        done(8.0, 2, (0,)),
        at(8.25),
        sent(4, (0,), (1,)),
        done(9.0, 3, (0,)),
        done(9.5, 4, (0,)),
    )
    assert [(step.number, step.seconds, step.gap_s) for step in found] == [
        (1, 0.5, None),
        (2, 0.75, None),
        (3, 1.5, None),
        (4, 1.25, None),
    ]


def test_answers_of_a_past_epoch_and_steps_without_rows_are_passed_over(tmp_path: Path) -> None:
    found = steps_of(
        tmp_path,
        at(1.0),
        sent(1, (0,), (4,), r0=8),
        sent(2, (0,), (1,), epoch=2, r0=12),
        done(1.5, 1, (0,)),
        done(2.0, 2, (0,), epoch=2),
        sent(3, (), (), epoch=2),
        done(2.5, 3, (), epoch=2),
    )
    assert [(step.number, step.context, step.seconds) for step in found] == [(2, 13, 1.0)]


def test_a_step_that_is_none_is_refused(tmp_path: Path) -> None:
    wrong = msgpack.packb((SENT, 0, "executor", "Step", msgpack.packb((1, 2))))
    with pytest.raises(JournalError, match="holds a Step that is not what its head says"):
        steps_of(tmp_path, at(1.0), wrong)
