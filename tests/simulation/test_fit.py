"""Least squares that are never negative, checked by the conditions that hold at the minimum and nowhere else."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from asyncpage.core.step_latency import StepLatency
from asyncpage.errors import UsageError
from asyncpage.simulation.fit import Steps, fit_latency, modelled_s, nonnegative_least_squares

NOTHING = np.empty(0)


def steps(latency: StepLatency, count: int, noise_s: float = 0.0) -> Steps:
    draw = np.random.default_rng(11)
    rows = np.where(draw.random(count) < 0.2, 1, draw.integers(1, 64, count)).astype(np.float64)
    tokens = rows + np.where(draw.random(count) < 0.3, draw.integers(0, 500, count), 0)
    context = rows * draw.integers(20, 3000, count)
    pairs = (tokens - rows) * draw.integers(10, 3000, count)  # one row has a chunk, behind tokens of its own
    seconds = latency.base_s + latency.per_token_s * tokens + latency.per_context_s * context + latency.per_row_s * rows
    seconds += latency.per_pair_s * pairs + latency.batch_s * (tokens > 1)
    gaps = latency.gap_s + latency.gap_per_row_s * rows
    return Steps(tokens, context, rows, pairs, seconds + draw.normal(0, noise_s, count), rows, gaps)


@pytest.mark.parametrize("seed", range(40))
def test_the_gradient_is_nought_where_the_answer_is_positive_and_does_not_lead_down_elsewhere(seed: int) -> None:
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(30, 5)) * 10.0 ** draw.integers(-4, 5, 5)
    targets = features @ (draw.normal(size=5) / np.abs(features).mean(axis=0)) + draw.normal(size=30)
    found = nonnegative_least_squares(features, targets)
    assert (found >= 0).all()
    # Karush-Kuhn-Tucker: of a convex problem these are satisfied by the minimum alone.
    gradient = features.T @ (features @ found - targets) / np.linalg.norm(features, axis=0)
    size = np.linalg.norm(targets)
    assert np.abs(gradient[found > 0]).max(initial=0) < 1e-9 * size
    assert gradient[found == 0].min(initial=0) > -1e-9 * size


def test_columns_that_are_nought_or_equal_do_no_harm() -> None:
    column = np.arange(1.0, 9.0)
    features = np.stack((column, np.zeros(8), column), axis=1)
    found = nonnegative_least_squares(features, 3 * column)
    assert features @ found == pytest.approx(3 * column)
    assert (found >= 0).all()
    assert nonnegative_least_squares(features, -column) == pytest.approx(np.zeros(3))


def test_a_model_without_noise_is_found_again() -> None:
    latency = StepLatency(7e-3, 4e-5, 5e-8, 1e-5, 2e-4, 3e-6, 4e-8, 3e-3)
    fit = fit_latency(steps(latency, 500))
    found = fit.latency
    for name in StepLatency.__dataclass_fields__:
        assert getattr(found, name) == pytest.approx(getattr(latency, name), rel=1e-6), name
    assert fit.explained == pytest.approx(1.0)
    assert fit.total_ratio == pytest.approx(1.0)
    assert fit.off_s < 1e-9


def test_noise_is_averaged_out_and_its_size_is_told() -> None:
    latency = StepLatency(7e-3, 4e-5, 5e-8, 0.0)
    fit = fit_latency(steps(latency, 4000, noise_s=1e-3))
    assert fit.latency.per_token_s == pytest.approx(4e-5, rel=0.05)
    assert fit.latency.per_context_s == pytest.approx(5e-8, rel=0.05)
    assert fit.off_s == pytest.approx(1e-3 * np.sqrt(2 / np.pi), rel=0.1)  # mean of a normal's absolute value
    assert fit.total_ratio == pytest.approx(1.0, abs=1e-3)


def test_steps_that_only_decode_say_nothing_about_the_inside_of_a_chunk() -> None:
    decoding = steps(StepLatency(7e-3, 4e-5, 5e-8), 500, noise_s=1e-3)
    assert fit_latency(replace(decoding, pairs=np.zeros(500))).latency.per_pair_s == 0


def test_steps_that_are_all_of_several_tokens_are_all_base() -> None:
    measured = steps(StepLatency(7e-3, 4e-5, batch_s=3e-3), 500)
    several = measured.tokens > 1
    columns = {field.name: getattr(measured, field.name)[several] for field in fields(Steps)}
    found = fit_latency(Steps(**columns)).latency
    assert (found.base_s, found.batch_s) == (pytest.approx(10e-3), 0)


def test_a_measured_step_is_told_by_the_model_as_a_simulated_one_is() -> None:
    latency = StepLatency(7e-3, 4e-5, 5e-8, 1e-5, per_pair_s=4e-8, batch_s=3e-3)
    measured = steps(latency, 30)
    assert modelled_s(latency, measured) == pytest.approx(measured.seconds, rel=1e-12)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 20 steps, found 3"):
        fit_latency(Steps(*(np.ones(3) for _ in range(5)), NOTHING, NOTHING))
