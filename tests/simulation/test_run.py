"""Whole simulations against closed forms: what queueing theory and the latency model alone say must come out."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from asyncpage.config import EngineConfig
from asyncpage.core.step_latency import StepLatency
from asyncpage.errors import UsageError
from asyncpage.messages import Int32
from asyncpage.simulation.run import Machine, simulate
from asyncpage.simulation.synthetic import SHAPES, Arrivals, Shape, synthetic_trace
from asyncpage.simulation.trace import Arrival, Session, Trace, Turn

LATENCY = StepLatency(5e-3, 1e-4, 1e-6, 1e-5, 7e-4, 1e-5, 1e-7, 3e-3)
ONE_AT_A_TIME = Machine(LATENCY, "cpu")


def alone(*turns: tuple[float, int, int]) -> Trace:
    """Single requests: (arrival, prompt tokens, output tokens), no two with a common beginning."""

    def session(place: int, length: int, output: int) -> Session:
        yield Turn(np.arange(1000 * place, 1000 * place + length, dtype=np.int32), output)

    def arrivals() -> Iterator[Arrival]:
        for place, (at_s, length, output) in enumerate(turns):
            yield Arrival(at_s, session(place, length, output))

    return Trace("alone", list(arrivals()), len(turns), True)


def ms(seconds: float) -> object:
    return pytest.approx(1e3 * seconds, rel=1e-6)


def test_one_request_takes_what_the_latency_model_says() -> None:
    outcome = simulate(EngineConfig(max_num_batched_tokens=512), ONE_AT_A_TIME, alone((3.0, 100, 6)))
    model = LATENCY
    first_s = model.gap_s + model.base_s + 100 * model.per_token_s + 100 * model.per_context_s + model.per_row_s
    first_s += model.batch_s + sum(range(1, 100)) * model.per_pair_s  # the last token's are its context
    each_s = [
        model.gap_s
        + model.gap_per_row_s
        + model.base_s
        + model.per_token_s
        + (100 + k) * model.per_context_s
        + model.per_row_s
        for k in range(1, 6)
    ]
    found = outcome.summary
    assert found["mean_ttft_ms"] == ms(first_s)
    assert found["mean_tpot_ms"] == ms(sum(each_s) / 5)
    assert found["mean_e2el_ms"] == ms(first_s + sum(each_s))
    assert found["duration"] == pytest.approx(first_s + sum(each_s))
    assert (found["steps"], found["mean_rows"], found["total_output_tokens"]) == (6, 1.0, 6)


def test_with_two_steps_in_flight_the_control_planes_time_is_hidden() -> None:
    outcome = simulate(EngineConfig(), Machine(LATENCY), alone((0.0, 10, 50)))
    model = LATENCY
    each_s = [model.base_s + model.per_token_s + (10 + k) * model.per_context_s + model.per_row_s for k in range(1, 50)]
    assert outcome.summary["mean_tpot_ms"] == ms(sum(each_s) / 49)


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    config = EngineConfig(max_num_batched_tokens=128)
    outcome = simulate(config, ONE_AT_A_TIME, alone((0.0, 300, 1)))
    model = LATENCY
    # Chunks of 128, 128 and 44 tokens behind answers about no row, one and one.
    expected_s = (
        3 * (model.gap_s + model.base_s + model.batch_s + model.per_row_s)
        + 2 * model.gap_per_row_s
        + 300 * model.per_token_s
        + (128 + 256 + 300) * model.per_context_s
        + (sum(range(1, 301)) - (128 + 256 + 300)) * model.per_pair_s
    )
    assert outcome.summary["mean_ttft_ms"] == ms(expected_s)


def test_a_queue_before_one_row_waits_as_lindley_and_pollaczek_say() -> None:
    service_s, requests = 0.01, 3000
    config = EngineConfig(max_num_seqs=1, max_num_batched_tokens=16, max_queue=requests, enable_prefix_caching=False)
    trace = synthetic_trace(
        "queue",
        Shape(input_tokens=4, output_tokens=1),
        Arrivals(rate=0.5 / service_s),
        requests=requests,
        seed=4,
        end_id=2047,
        most_tokens=1000,
    )
    found = simulate(config, Machine(StepLatency(base_s=service_s), "cpu"), trace).summary
    waits_s = [0.0]
    for gap_s in np.diff([arrival.at_s for arrival in trace.arrivals]):
        waits_s.append(max(0.0, waits_s[-1] + service_s - gap_s))  # Lindley, 1952
    assert found["mean_e2el_ms"] == pytest.approx(1e3 * (service_s + np.mean(waits_s)), rel=1e-9)
    # Pollaczek and Khinchin: an M/D/1 queue waits rho / (2 (1 - rho)) services on average.
    assert np.mean(waits_s) == pytest.approx(service_s * 0.5 / (2 * 0.5), rel=0.1)
    assert found["completed"] == requests


@pytest.mark.parametrize("name", ["chat", "agents"])
def test_two_runs_are_equal_to_the_bit(name: str) -> None:
    config = EngineConfig(max_num_seqs=16, num_kv_blocks=1200, max_model_len=8000)
    trace = synthetic_trace(name, SHAPES[name], Arrivals(3.0, 0.5), requests=25, seed=9, end_id=2047, most_tokens=8000)
    first = simulate(config, ONE_AT_A_TIME, trace)
    assert first == simulate(config, ONE_AT_A_TIME, trace)
    assert first.summary["completed"] == 25


def test_later_turns_find_what_the_earlier_ones_left_in_the_cache() -> None:
    shape = Shape(input_tokens=40, output_tokens=20, turns=3.0)
    trace = synthetic_trace("chat", shape, Arrivals(0.5), requests=40, seed=1, end_id=2047, most_tokens=4000)
    seen: list[Turn] = []

    def watched(session: Session) -> Session:
        turn = next(session)
        while True:
            seen.append(turn)
            answer = yield turn
            try:
                turn = session.send(answer)
            except StopIteration:
                return

    arrivals = [Arrival(arrival.at_s, watched(arrival.session)) for arrival in trace.arrivals]
    outcome = simulate(EngineConfig(), ONE_AT_A_TIME, replace(trace, arrivals=arrivals))
    # All of the turn before but its last token, which nobody computed, to the token.
    expected = 0
    known: dict[bytes, int] = {}
    for turn in seen:
        opening = turn.prompt[:40].tobytes()
        expected += max(0, known.get(opening, 0) - 1)
        known[opening] = len(turn.prompt) + turn.output_tokens
    assert len(seen) == 40
    assert outcome.summary["total_cached_tokens"] == pytest.approx(expected, rel=0.01)


def test_no_more_requests_are_under_way_than_allowed_and_the_trace_is_read_no_further() -> None:
    under_way: list[int] = []
    read = ended = 0

    def session() -> Session:
        nonlocal ended
        first: Int32 = np.arange(5, dtype=np.int32)
        yield Turn(first, 3, is_last=False)
        ended += 1

    def arrivals() -> Iterator[Arrival]:
        nonlocal read
        for _ in range(200):
            read += 1
            under_way.append(read - ended)
            yield Arrival(0.0, session())

    simulate(EngineConfig(), ONE_AT_A_TIME, Trace("all at once", arrivals(), 200, False), most_open=7)
    assert (read, ended) == (200, 200)
    assert max(under_way) == 8  # those under way, and the one that has been read


def test_what_the_queue_does_not_take_is_counted_as_refused() -> None:
    config = EngineConfig(max_num_seqs=2, max_queue=3)
    outcome = simulate(config, ONE_AT_A_TIME, alone(*((0.0, 10, 50),) * 20))
    assert (outcome.summary["completed"], outcome.summary["refused"]) == (5, 15)
    assert "try again later" in outcome.first_failure


def test_a_trace_that_breaks_ends_the_simulation_with_its_error() -> None:
    def arrivals() -> Iterator[Arrival]:
        yield from alone((0.0, 10, 5)).arrivals
        raise UsageError("line 2 is no request")

    with pytest.raises(UsageError, match="line 2"):
        simulate(EngineConfig(), ONE_AT_A_TIME, Trace("broken", arrivals(), None, True))


def test_a_session_that_breaks_ends_the_simulation_with_its_error() -> None:
    def session() -> Session:
        yield Turn(np.arange(5, dtype=np.int32), 2, is_last=False)
        raise ZeroDivisionError("in the second turn")

    with pytest.raises(ZeroDivisionError, match="second turn"):
        simulate(EngineConfig(), ONE_AT_A_TIME, Trace("broken", [Arrival(0.0, session())], None, True))


def test_the_hash_seed_of_a_process_changes_nothing() -> None:
    command = [sys.executable, "-m", "asyncpage", "simulate", "chat", "--num-requests", "30", "--json"]
    runs = [
        subprocess.run(
            [*command, "--max-num-seqs", "4", "--num-kv-blocks", "300", "--max-model-len", "4000"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != b""


def test_progress_is_told_from_nought_to_the_end() -> None:
    told: list[tuple[int, int | None]] = []
    simulate(
        EngineConfig(), ONE_AT_A_TIME, alone((0.0, 5, 2)), on_progress=lambda done, total: told.append((done, total))
    )
    assert (told[0], told[-1]) == ((0, 1), (1, 1))


async def test_a_simulation_needs_no_loop_of_its_callers() -> None:
    outcome = await asyncio.to_thread(simulate, EngineConfig(), ONE_AT_A_TIME, alone((0.0, 5, 2)))
    assert outcome.summary["completed"] == 1
