"""The figures of a load run, from samples whose figures are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpage.cli.latency import Sample, percentile, summary


def steady(sent: float, first_s: float, gap_s: float, tokens: int) -> Sample:
    arrivals = [sent + first_s + gap_s * i for i in range(tokens)]
    return Sample(sent, arrivals, arrivals[-1], prompt_tokens=10, output_tokens=tokens, cached_tokens=4)


def test_steady_streams_give_their_own_figures() -> None:
    samples = [steady(0.0, 0.2, 0.01, 11), steady(1.0, 0.4, 0.03, 11)]
    found = summary(samples, duration_s=2.0)
    assert found["completed"] == 2
    assert found["failed"] == 0
    assert found["total_input_tokens"] == 20
    assert found["total_cached_tokens"] == 8
    assert found["total_output_tokens"] == 22
    assert found["request_throughput"] == 1.0
    assert found["output_throughput"] == 11.0
    assert found["total_token_throughput"] == 21.0
    assert found["mean_ttft_ms"] == pytest.approx(300)
    assert found["median_ttft_ms"] == pytest.approx(300)
    assert found["p99_ttft_ms"] == pytest.approx(200 + 0.99 * 200)
    assert found["mean_tpot_ms"] == pytest.approx(20)
    assert found["mean_itl_ms"] == pytest.approx(20)
    assert found["median_itl_ms"] == pytest.approx(20)
    assert found["mean_e2el_ms"] == pytest.approx((300 + 700) / 2)


def test_a_chunk_of_several_tokens_counts_its_tokens_in_tpot_and_its_gap_in_itl() -> None:
    sample = Sample(0.0, [1.0, 1.4, 1.8], 1.8, output_tokens=9)
    found = summary([sample], duration_s=2.0)
    assert found["mean_tpot_ms"] == pytest.approx(100)
    assert found["mean_itl_ms"] == pytest.approx(400)


def test_failed_requests_count_as_failed_and_nowhere_else() -> None:
    found = summary([steady(0.0, 0.1, 0.1, 3), Sample(error="HTTP 500", output_tokens=99, arrivals=[9.0])], 1.0)
    assert (found["completed"], found["failed"], found["total_output_tokens"]) == (1, 1, 3)
    assert found["p99_ttft_ms"] == pytest.approx(100)


def test_a_run_without_an_answer_has_no_latencies() -> None:
    found = summary([Sample(error="refused")], 1.0)
    assert found["request_throughput"] == 0
    assert not any(name.endswith("_ms") for name in found)


def test_one_token_answers_have_no_time_per_further_token() -> None:
    found = summary([steady(0.0, 0.5, 0.1, 1)], 1.0)
    assert "mean_tpot_ms" not in found
    assert found["mean_ttft_ms"] == pytest.approx(500)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.sampled_from([0, 1, 50, 90, 99, 100]))
def test_percentiles_are_numpys(values: list[float], percent: int) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), rel=1e-9, abs=1e-6)
