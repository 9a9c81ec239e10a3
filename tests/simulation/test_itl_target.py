"""The target of waits between tokens on a simulated CPU: what it holds, what it costs, and that a replay decides alike.

The machine's times are those of the latency model and of no clock, so the bounds are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from asyncpage.config import EngineConfig
from asyncpage.core.step_latency import StepLatency
from asyncpage.pipes.journal.reader import JournalReader
from asyncpage.replay.rerun import Rerun
from asyncpage.simulation.journal_steps import journal_steps
from asyncpage.simulation.run import Machine, simulate
from asyncpage.simulation.tally import Summary
from asyncpage.simulation.trace import Arrival, Session, Trace, Turn

# Of a small model on two cores: 3 ms whatever is in a step, 1 ms a token, 1 us a token of context that is read.
LATENCY = StepLatency(base_s=0.003, per_token_s=0.001, per_context_s=1e-6)


def trace(requests: int, every_s: float = 0.0) -> Trace:
    """Prompts of 128 tokens that nobody shares, answers of 64."""

    def session(number: int) -> Session:
        yield Turn(np.random.default_rng(number).integers(0, 50_000, 128, dtype=np.int32), 64)

    def arrivals() -> Iterator[Arrival]:
        for number in range(requests):
            yield Arrival(number * every_s, session(number))

    return Trace("test", arrivals(), requests, has_times=True)


def play(journal: Path, requests: int, every_s: float, target_ms: float | None, device: str = "cpu") -> Summary:
    config = EngineConfig(seed=0, max_num_seqs=64, itl_target_ms=target_ms, journal=str(journal))
    return simulate(config, Machine(LATENCY, device), trace(requests, every_s)).summary


def mixed_steps_ms(journal: Path) -> list[float]:
    """What steps took in which prompt tokens joined a row that decodes, where no two prompts began at once."""
    steps = journal_steps(journal, warm_up_steps=0).steps
    is_mixed = (steps.rows > 1) & (steps.tokens > steps.rows)
    return [1000 * float(seconds) for seconds in steps.seconds[is_mixed]]


def test_prompts_that_arrive_one_by_one_hold_nobody_up_longer_than_the_target(tmp_path: Path) -> None:
    play(tmp_path / "off", 16, 0.25, 0.0)
    play(tmp_path / "on", 16, 0.25, None)
    play(tmp_path / "short", 16, 0.25, 30.0)
    assert max(mixed_steps_ms(tmp_path / "off")) > 128  # a whole prompt
    assert max(mixed_steps_ms(tmp_path / "on")) <= 60
    assert np.median(mixed_steps_ms(tmp_path / "on")) > 30  # and no slice is smaller than it need be
    assert max(mixed_steps_ms(tmp_path / "short")) <= 30


@pytest.mark.parametrize("requests", [8, 32, 64])
def test_it_costs_less_than_a_tenth_of_the_throughput(tmp_path: Path, requests: int) -> None:
    without = play(tmp_path / "off", requests, 0.0, 0.0)
    with_it = play(tmp_path / "on", requests, 0.0, None)
    assert with_it["total_output_tokens"] == without["total_output_tokens"] == 64 * requests
    assert float(with_it["output_throughput"]) >= 0.9 * float(without["output_throughput"])


def test_elsewhere_than_on_a_cpu_prompts_are_whole_unless_a_target_is_given(tmp_path: Path) -> None:
    play(tmp_path / "default", 16, 0.25, None, "simulated")
    play(tmp_path / "given", 16, 0.25, 60.0, "simulated")
    assert max(mixed_steps_ms(tmp_path / "default")) > 128
    assert max(mixed_steps_ms(tmp_path / "given")) <= 60


@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_a_replay_cuts_the_same_slices(tmp_path: Path, device: str) -> None:
    play(tmp_path / "j", 24, 0.1, 40.0, device)
    rerun = Rerun(JournalReader(tmp_path / "j"))
    assert rerun.run() is None
    assert rerun.summary().steps > 100
