"""Percentiles from bins against numpy's from all values."""

import numpy as np
import pytest

from asyncpage.simulation.distribution import RATIO, Distribution


@pytest.mark.parametrize("scale", [1e-5, 0.02, 500.0])
def test_percentiles_are_within_half_a_bin_and_the_mean_is_exact(scale: float) -> None:
    values = np.random.default_rng(3).lognormal(0.0, 1.5, 20_000) * scale
    found = Distribution()
    for value in values.tolist():
        found.add(value)
    assert found.mean_s == pytest.approx(values.mean(), rel=1e-9)
    for percent in (1, 50, 90, 99, 99.9, 100):
        expected = np.percentile(values, percent, method="inverted_cdf")
        assert found.percentile_s(percent) == pytest.approx(expected, rel=(RATIO - 1) * 0.51)


def test_nothing_counted_is_nought_and_nought_can_be_counted() -> None:
    found = Distribution()
    assert (found.mean_s, found.percentile_s(99)) == (0.0, 0.0)
    found.add(0.0)
    assert (found.count, found.percentile_s(50)) == (1, 0.0)


def test_equal_values_are_all_their_percentiles() -> None:
    found = Distribution()
    for _ in range(10):
        found.add(0.125)
    assert found.percentile_s(1) == found.percentile_s(99) == pytest.approx(0.125, rel=0.0026)
    assert found.percentile_s(100) <= 0.125
