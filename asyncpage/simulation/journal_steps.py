"""The steps that a journal tells of: what each computed, and how long its answer took.

`asyncpage simulate --fit` reads a real engine's journal with it.

INVARIANT: only answered steps count, each from when the executor could begin it: when it was sent, or when the step
before it was answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from asyncpage.config import EngineConfig
from asyncpage.core.step_latency import chunk_pairs
from asyncpage.errors import JournalError, UsageError
from asyncpage.messages import Int32, Step, StepDone
from asyncpage.pipes.journal.reader import JournalReader
from asyncpage.pipes.journal.record import RECEIVED, SENT, Record, reading_dialect
from asyncpage.pipes.record import Dialect
from asyncpage.simulation.fit import Steps

WARM_UP_STEPS = 5  # a device's first steps allocate and compile

_OUTSIDE_STEPS = ("StepFailed", "ExecutorLost")


@dataclass(slots=True)
class _Columns:
    tokens: list[int] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    pairs: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    gap_rows: list[int] = field(default_factory=list)
    gap_seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """A step in flight; `at_s`: when it was sent."""

    number: int
    epoch: int
    at_s: float
    tokens: int
    context: int
    rows: int
    pairs: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """A journal's steps, without the first few, and the engine that ran them: its settings and what they came to."""

    steps: Steps
    config: EngineConfig
    device: str
    blocks: int
    max_model_len: int


def journal_steps(
    path: Path,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    warm_up_steps: int = WARM_UP_STEPS,
) -> Recorded:
    """Read all of a journal, and leave out its first `warm_up_steps`.

    `on_progress` is called with bytes read and bytes in all. Errors: `UsageError` when it cannot be read.
    """
    try:
        reader = JournalReader(path)
        if reader.head.config.speculation != "off":
            raise UsageError(
                f"--fit {path}: it was recorded with --speculation {reader.head.config.speculation}, and what drafts "
                "take is in no latency model; record one without"
            )
        film = _Film(reading_dialect(reader.head), reader.head.config.max_num_seqs)
        for place, record in enumerate(reader.records()):
            film.show(record)
            if place % 4096 == 0:
                on_progress(reader.bytes_read, reader.size)
        on_progress(reader.size, reader.size)
    except (JournalError, OSError) as error:
        raise UsageError(f"--fit {path}: {error}") from None
    found = film.columns
    skip = slice(warm_up_steps, None)
    steps = Steps(
        tokens=np.array(found.tokens[skip], dtype=np.float64),
        context=np.array(found.context[skip], dtype=np.float64),
        rows=np.array(found.rows[skip], dtype=np.float64),
        pairs=np.array(found.pairs[skip], dtype=np.float64),
        seconds=np.array(found.seconds[skip], dtype=np.float64),
        gap_rows=np.array(found.gap_rows[skip], dtype=np.float64),
        gap_seconds=np.array(found.gap_seconds[skip], dtype=np.float64),
    )
    loaded = reader.head.handshake
    return Recorded(steps, reader.head.config, loaded.device, loaded.blocks, loaded.max_model_len)


class _Film:
    """Follows the rows' computed tokens from step to step, as the executor does."""

    def __init__(self, dialect: Dialect, rows: int) -> None:
        self.columns = _Columns()
        self._dialect = dialect
        self._computed: Int32 = np.zeros(rows, dtype=np.int32)
        self._is_known = np.zeros(rows, dtype=np.bool_)  # False: its life began before the journal did
        self._epoch = -1
        self._flying: deque[_Sent] = deque()
        self._now_s = 0.0
        self._answered_s = float("-inf")
        self._answered_rows = 0
        self._last_rows: frozenset[int] = frozenset()

    def show(self, record: Record) -> None:
        if record.kind != SENT:
            self._now_s = record.time or self._now_s
        if record.kind == SENT and record.name == "Step" and record.to == "executor":
            self._sent(self._dialect.unpack(Step, record.packed))
        elif record.kind == RECEIVED and record.name == "StepDone":
            self._done(self._dialect.rebuild(StepDone, record.plain))
        elif record.kind == RECEIVED and record.name in _OUTSIDE_STEPS:
            self._flying.clear()
            self._last_rows = frozenset()

    def _sent(self, step: Step) -> None:
        if step.epoch != self._epoch:
            self._epoch = step.epoch
            self._is_known[:] = False
        for new in step.added:
            self._computed[new.row] = new.computed
            self._is_known[new.row] = True
        added = {new.row for new in step.added}
        rows = frozenset(step.rows.tolist())
        # A row that goes on was waiting for this step, so the time since the last answer was the control plane's.
        if not self._flying and (rows - added) & self._last_rows:
            self.columns.gap_rows.append(self._answered_rows)
            self.columns.gap_seconds.append(self._now_s - self._answered_s)
        self._last_rows = rows
        self._computed[step.rows] += step.counts
        computed = self._computed[step.rows]
        self._flying.append(
            _Sent(
                number=step.number,
                epoch=step.epoch,
                at_s=self._now_s,
                tokens=int(step.counts.sum()),
                context=int(computed.sum()) if self._is_known[step.rows].all() else -1,
                rows=len(step.rows),
                pairs=chunk_pairs(computed, step.counts),
            )
        )

    def _done(self, done: StepDone) -> None:
        if not self._flying or (self._flying[0].number, self._flying[0].epoch) != (done.number, done.epoch):
            return
        sent = self._flying.popleft()
        if sent.context >= 0 and sent.rows:
            self.columns.tokens.append(sent.tokens)
            self.columns.context.append(sent.context)
            self.columns.rows.append(sent.rows)
            self.columns.pairs.append(sent.pairs)
            self.columns.seconds.append(self._now_s - max(sent.at_s, self._answered_s))
        self._answered_s = self._now_s
        self._answered_rows = sent.rows
