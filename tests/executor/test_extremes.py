"""Largest entries: against a full stable sort."""

import numpy as np
import pytest
import torch

from asyncpage.executor import extremes


def sorted_top(values: np.ndarray, k: int) -> list[list[int]]:
    return [sorted(range(len(row)), key=lambda i, row=row: (-row[i], i))[:k] for row in values]


@pytest.mark.parametrize("width", [1, 5, 64, 65, 1000, 1024])
@pytest.mark.parametrize("levels", [2, 50, 10**9])
def test_top_is_the_beginning_of_a_stable_sort_with_ties_to_the_lowest_index(width: int, levels: int) -> None:
    generator = np.random.default_rng(width * 7 + levels)
    values = generator.integers(0, levels, (4, width)).astype(np.float32)
    for k in {1, min(3, width), min(20, width), width}:
        assert extremes.top(torch.from_numpy(values), k).tolist() == sorted_top(values, k)


def test_top_looks_past_minus_infinity() -> None:
    values = torch.full((1, 300), -torch.inf)
    values[0, [200, 100]] = torch.tensor([1.0, 2.0])
    assert extremes.top(values, 4).tolist() == [[100, 200, 0, 1]]


def test_top_of_nothing_is_empty() -> None:
    assert extremes.top(torch.zeros(3, 5), 0).shape == (3, 0)
    assert extremes.top(torch.zeros(0, 5), 2).shape == (0, 2)


def test_the_floor_is_reached_by_k_entries_and_few_more() -> None:
    values = torch.randn(8, 49_152, generator=torch.Generator().manual_seed(1))
    for k in (1, 20, 100):
        reached = (values >= torch.from_numpy(extremes.floor_of_top(values, k))[:, None]).sum(dim=1)
        assert int(reached.min()) >= k
        assert int(reached.max()) <= 2 * k


def test_best_takes_the_lowest_index_and_shows_a_nan() -> None:
    values = torch.tensor([[1.0, 3.0, 3.0], [1.0, torch.nan, 9.0], [-torch.inf] * 3])
    indices, entries = extremes.best(values)
    assert indices[0] == 1
    assert np.isnan(entries[1])
    assert entries[2] == -np.inf
