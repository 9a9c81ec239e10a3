"""The steps of a journal in numbers: what each computed and how long it took.

The simulation fits its latency model to them.

INVARIANT: only steps whose answer came from the executor they were sent to are told, each once, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asyncpage.errors import JournalError
from asyncpage.messages import Int32
from asyncpage.pipes.journal.reader import JournalReader
from asyncpage.pipes.journal.record import RECEIVED, SENT
from asyncpage.pipes.record import unpack_plain


class RecordedStep(NamedTuple):
    """`tokens` computed by `rows` rows, which read `context` tokens: those computed after the step, summed over rows.

    `seconds`: from sending to answer. `gap_s`: from the answer before to sending, where that answer led to this step
    and nothing else was in flight; None elsewhere. `gap_rows`: rows of that answer.
    """

    number: int
    tokens: int
    context: int
    rows: int
    seconds: float
    gap_s: float | None
    gap_rows: int


class _Sent(NamedTuple):
    number: int
    epoch: int
    tokens: int
    context: int
    rows: int
    time: float
    gap_s: float | None
    gap_rows: int


def journal_steps(path: Path) -> Iterator[RecordedStep]:
    """Every step with rows that was answered. Errors: `JournalError`."""
    reader = JournalReader(path)
    shapes = reader.head.shapes
    computed: dict[int, int] = {}  # by row
    in_flight: deque[_Sent] = deque()
    epoch = 0
    now = 0.0
    answer: tuple[float, int] | None = None  # when the last answer came and its rows, until something else comes
    for record in reader.records():
        if record.kind == SENT and record.name == "Step":
            step = _fields(shapes, "Step", unpack_plain(record.packed))
            if step["epoch"] != epoch:
                epoch = step["epoch"]
                computed.clear()
                in_flight.clear()
            for new in step["added"]:
                row = _fields(shapes, "NewRow", new)
                computed[row["row"]] = row["computed"]
            rows, counts = _column(step["rows"]).tolist(), _column(step["counts"]).tolist()
            for row, count in zip(rows, counts, strict=True):
                computed[row] = computed.get(row, 0) + count
            gap_s, gap_rows = (None, 0) if answer is None or in_flight else (now - answer[0], answer[1])
            context = sum(computed[row] for row in rows)
            in_flight.append(_Sent(step["number"], epoch, sum(counts), context, len(rows), now, gap_s, gap_rows))
            answer = None
        elif record.kind != SENT:
            now = record.time or now
        if record.kind == RECEIVED:
            answer = None
            if record.name == "StepDone":
                done = _fields(shapes, "StepDone", record.plain)
                if in_flight and (in_flight[0].number, in_flight[0].epoch) == (done["number"], done["epoch"]):
                    sent = in_flight.popleft()
                    if sent.rows:
                        seconds = now - sent.time
                        yield RecordedStep(
                            sent.number, sent.tokens, sent.context, sent.rows, seconds, sent.gap_s, sent.gap_rows
                        )
                    answer = None if in_flight else (now, len(_column(done["rows"])))


def _fields(shapes: Any, name: str, plain: Any) -> dict[str, Any]:
    shape = shapes.get(name, ())
    if type(plain) is not tuple or len(plain) != len(shape):
        raise JournalError(f"the journal holds a {name} that is not what its head says")
    return dict(zip(shape, plain, strict=True))


def _column(plain: Any) -> Int32:
    try:
        _, shape, data = plain
        return np.frombuffer(data, np.dtype("<i4")).reshape(shape)
    except (TypeError, ValueError) as error:
        raise JournalError(f"the journal holds a column that is none: {error}") from None
