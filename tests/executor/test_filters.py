"""min_p, top_k and top_p: against a float64 computation that sorts the whole vocabulary."""

import itertools

import numpy as np
import pytest
import torch

from asyncpage.core.sampling import SamplingParams
from asyncpage.executor.filters import Filters


def oracle(logits: np.ndarray, filters: Filters, temperature: float) -> set[int]:
    """The sequential definition: each filter over the renormalised rest of the one before."""
    order = np.argsort(-logits, kind="stable")
    scaled = logits[order].astype(np.float64) / temperature
    p = np.exp(scaled - scaled[0])
    p /= p.sum()
    kept = p >= filters.min_p * p[0]
    if filters.top_k:
        kept &= np.arange(len(p)) < filters.top_k
    order, p = order[kept], p[kept] / p[kept].sum()
    before = np.cumsum(p) - p
    return set(order[before < filters.top_p].tolist()) if filters.top_p < 1 else set(order.tolist())


def survivors(logits: np.ndarray, filters: Filters, temperature: float) -> tuple[set[int], np.ndarray]:
    ids, weights = filters.survivors(torch.from_numpy(logits), float(logits.max()), temperature)
    assert len(set(ids.tolist())) == len(ids)
    expected = np.exp((logits[ids].astype(np.float64) - logits.max()) / temperature)
    np.testing.assert_allclose(weights, expected, rtol=1e-12)
    return set(ids.tolist()), weights


SETTINGS = [
    Filters(min_p, top_k, top_p)
    for min_p, top_k, top_p in itertools.product((0.0, 0.02, 1.0), (0, 1, 7, 900), (0.05, 0.9, 0.999, 1.0))
]


@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
@pytest.mark.parametrize("width", [130, 3000])
def test_survivors_are_those_of_the_sorted_definition(spread: float, width: int) -> None:
    generator = np.random.default_rng(int(spread * 100) + width)
    for filters, temperature in itertools.product(SETTINGS, (0.3, 1.0, 2.0)):
        logits = generator.normal(0, spread, width).astype(np.float32)
        found, _ = survivors(logits, filters, temperature)
        assert found == oracle(logits, filters, temperature), (filters, temperature)


def test_at_equal_logits_the_lowest_ids_survive() -> None:
    logits = np.array([1, 2, 2, 2, 0, 2], dtype=np.float32)
    assert survivors(logits, Filters(0.0, 2, 1.0), 1.0)[0] == {1, 2}
    assert survivors(logits, Filters(0.0, 0, 0.3), 1.0)[0] == {1, 2}
    flat = np.zeros(4000, dtype=np.float32)
    assert survivors(flat, Filters(0.0, 0, 0.5), 1.0)[0] == set(range(2000))


def test_what_is_forbidden_never_survives() -> None:
    places = np.array([10, 900])
    logits = np.full(1000, -np.inf, dtype=np.float32)
    logits[places] = [1.0, 2.0]
    for filters in SETTINGS:
        found, _ = survivors(logits, filters, 1.0)
        assert found == {int(places[i]) for i in oracle(logits[places], filters, 1.0)}


def test_a_real_vocabularys_flat_and_peaked_rows() -> None:
    generator = np.random.default_rng(3)
    for spread, peak in ((0.5, 0.0), (2.5, 8.0), (2.5, 40.0)):
        logits = generator.normal(0, spread, 49_152).astype(np.float32)
        logits[:5] += peak
        for filters in (Filters(0.0, 0, 0.9), Filters(0.0, 50, 0.9), Filters(0.05, 0, 1.0), Filters(0.0, 0, 0.0001)):
            assert survivors(logits, filters, 0.7)[0] == oracle(logits, filters, 0.7)


def test_settings_that_keep_everything_are_no_filters() -> None:
    assert Filters.of(SamplingParams()) is None
    assert Filters.of(SamplingParams(top_p=0.5)) == Filters(0.0, 0, 0.5)
    logits = np.arange(10, dtype=np.float32)
    assert survivors(logits, Filters(0.0, 10**6, 1.0), 1.0)[0] == set(range(10))
