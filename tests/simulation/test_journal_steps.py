"""From a journal back to the latency model that made its times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.core.step_latency import StepLatency
from asyncpage.errors import UsageError
from asyncpage.messages import Int32, NewRow, RequestId, Step, StepDone
from asyncpage.pipes.journal.recorder import Recorder
from asyncpage.pipes.journal.segment import SegmentFiles
from asyncpage.simulation.fit import fit_latency
from asyncpage.simulation.journal_steps import WARM_UP_STEPS, journal_steps
from asyncpage.simulation.run import Machine, simulate
from asyncpage.simulation.synthetic import Arrivals, Shape, synthetic_trace
from asyncpage.testing.clock import FakeClock
from asyncpage.testing.toy_runner import toy_handshake

LATENCY = StepLatency(5e-3, 1e-4, 1e-6, 1e-4, per_pair_s=1e-7, batch_s=2e-3)


def record(file: Path, device: str) -> int:
    """Simulates some load with a journal; how many steps it took."""
    shape = Shape(input_tokens=120, output_tokens=12, spread=0.5, turns=3.0, pause_s=0.3, systems=2, system_tokens=40)
    trace = synthetic_trace("load", shape, Arrivals(12.0), requests=60, seed=3, end_id=2047, most_tokens=4000)
    config = EngineConfig(journal=str(file), max_num_seqs=8, max_num_batched_tokens=64, num_kv_blocks=500)
    outcome = simulate(config, Machine(LATENCY, device), trace)
    assert outcome.summary["completed"] == 60
    return int(outcome.summary["steps"])


@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_the_model_behind_a_recorded_load_is_found_again(tmp_path: Path, device: str) -> None:
    steps = record(tmp_path / "run.journal", device)
    found = journal_steps(tmp_path / "run.journal")
    assert len(found.steps.seconds) == steps - WARM_UP_STEPS
    assert (found.device, found.blocks, found.config.max_num_seqs) == (device, 500, 8)
    fit = fit_latency(found.steps)
    for name in ("base_s", "per_token_s", "per_context_s", "per_row_s", "per_pair_s", "batch_s"):
        assert getattr(fit.latency, name) == pytest.approx(getattr(LATENCY, name), rel=1e-3), name
    assert fit.total_ratio == pytest.approx(1.0, abs=1e-6)


def column(*values: int) -> Int32:
    return np.array(values, dtype=np.int32)


def test_times_are_measured_from_when_a_step_could_begin_and_gaps_only_while_rows_go_on(tmp_path: Path) -> None:
    clock, config = FakeClock(), EngineConfig(max_num_seqs=4)
    files = SegmentFiles(tmp_path / "run.journal", 1 << 24)
    film = Recorder(files, clock, config=config, handshake=toy_handshake(), seed=0, eos_ids=())

    def send(number: int, rows: Int32, counts: Int32, *added: NewRow, after_s: float) -> None:
        clock.advance(after_s)
        film.batch_ended("scheduler")
        film.sent("scheduler", "executor", Step(number, 1, rows, counts, added=added))

    def answer(number: int, *, after_s: float) -> None:
        clock.advance(after_s)
        film.received("scheduler", StepDone(number, 1, column(), column(), column()))

    def new(row: int, tokens: int, computed: int) -> NewRow:
        return NewRow(row, RequestId(row), bytes(4 * tokens), tokens, computed, (b"",), SamplingParams(), 0)

    send(1, column(0, 1), column(8, 2), new(0, 8, 0), new(1, 6, 4), after_s=1.0)
    answer(1, after_s=0.5)
    send(2, column(0, 1), column(1, 1), after_s=0.25)  # the gap: both rows go on
    send(3, column(0, 1), column(1, 1), after_s=0.5)  # ahead, while the second is in flight
    answer(2, after_s=0.5)
    answer(3, after_s=0.75)
    send(4, column(2), column(3), new(2, 3, 0), after_s=9.0)  # nobody waited for this one
    answer(4, after_s=2.0)
    film.close()
    found = journal_steps(tmp_path / "run.journal", warm_up_steps=0).steps
    assert found.tokens.tolist() == [10, 2, 2, 3]
    assert found.context.tolist() == [8 + 6, 9 + 7, 10 + 8, 3]
    assert found.rows.tolist() == [2, 2, 2, 1]
    # Beside its last token: seven of eight see 1 to 7 tokens, one of two behind four sees 5; two of three see 1 and 2.
    assert found.pairs.tolist() == [sum(range(1, 8)) + 5, 0, 0, 1 + 2]
    assert found.seconds.tolist() == [0.5, 1.0, 0.75, 2.0]
    assert (found.gap_rows.tolist(), found.gap_seconds.tolist()) == ([2], [0.25])


def test_progress_is_told_in_bytes_up_to_all_of_them(tmp_path: Path) -> None:
    record(tmp_path / "run.journal", "cpu")
    told: list[tuple[int, int]] = []
    journal_steps(tmp_path / "run.journal", lambda done, total: told.append((done, total)))
    assert told[-1] == ((tmp_path / "run.journal").stat().st_size,) * 2


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"something else")
    for name in ("file", "none"):
        with pytest.raises(UsageError, match="--fit"):
            journal_steps(tmp_path / name)
