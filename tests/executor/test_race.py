"""Races: against all variates written out, and against the probabilities they must follow."""

import numpy as np
import pytest
import torch

from asyncpage.executor import noise
from asyncpage.executor.race import Race

CPU = torch.device("cpu")


def keys(seeds: int, number: int = 0) -> np.ndarray:
    streams = np.array([noise.stream_of(seed) for seed in range(seeds)], dtype=np.uint64)
    return noise.keys(streams, np.full(seeds, number))


def written_out(logits: np.ndarray, temperatures: np.ndarray, keys_N2: np.ndarray) -> list[int]:
    """Every variate of every row, in float64, and the smallest E / p."""
    width = logits.shape[1]
    bits = noise.bits(noise.vocabulary_table(width), torch.from_numpy(keys_N2)).numpy()
    scaled = logits.astype(np.float64) / temperatures[:, None]
    finish = noise.exponentials(bits) / np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return finish.argmin(axis=1).tolist()


@pytest.mark.parametrize("width", [1, 3, 500, 49_152])
def test_two_heats_have_the_winner_of_the_race_written_out(width: int) -> None:
    rows = 40
    generator = np.random.default_rng(width)
    logits = generator.normal(0, 4, (rows, width)).astype(np.float32)
    logits[::3, 1::2] = -np.inf
    temperatures = generator.choice([0.01, 0.7, 1.0, 2.0], rows)
    highest = logits.max(axis=1).astype(np.float64)
    won = Race(width, CPU).over_all(torch.from_numpy(logits), highest, temperatures, keys(rows))
    with np.errstate(divide="ignore", over="ignore"):
        assert won.tolist() == written_out(logits, temperatures, keys(rows))


@pytest.mark.parametrize("count", [1, 5, 3000])
def test_a_race_among_some_has_the_winner_of_a_race_over_all_where_the_others_are_forbidden(count: int) -> None:
    width = 8000
    generator = np.random.default_rng(count)
    race = Race(width, CPU)
    for row, key in enumerate(keys(20)):
        ids = generator.permutation(width)[:count]
        logits = np.full((1, width), -np.inf, dtype=np.float32)
        logits[0, ids] = generator.normal(0, 2, count)
        highest = np.array([logits.max()], dtype=np.float64)
        over_all = race.over_all(torch.from_numpy(logits), highest, np.ones(1), key[None])
        weights = np.exp(logits[0, ids].astype(np.float64) - highest[0])
        assert race.among(ids, weights, key) == over_all[0], row


def chi_square_limit(freedom: int) -> float:
    """Exceeded once in 10,000 true samples (Wilson and Hilferty's approximation, z = 3.72)."""
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + 3.72 * np.sqrt(spread)) ** 3)


@pytest.mark.parametrize("number", [0, 1, 57])
def test_winners_follow_the_probabilities_over_many_seeds(number: int) -> None:
    draws, width = 40_000, 60
    logits = np.random.default_rng(9).normal(0, 1.5, width).astype(np.float32)
    p = np.exp(logits.astype(np.float64) / 0.8)
    expected = draws * p / p.sum()
    rows = torch.from_numpy(np.broadcast_to(logits, (draws, width)).copy())
    highest, temperatures = np.full(draws, float(logits.max())), np.full(draws, 0.8)
    won = Race(width, CPU).over_all(rows, highest, temperatures, keys(draws, number))
    seen = np.bincount(won, minlength=width)
    common = expected >= 5
    chi_square = float((((seen - expected) ** 2) / expected)[common].sum())
    rest = expected[~common].sum()
    if rest:
        chi_square += float((seen[~common].sum() - rest) ** 2 / rest)
    assert chi_square < chi_square_limit(int(common.sum()) - (0 if rest else 1))


def test_rare_tokens_win_as_often_as_they_should_in_a_wide_vocabulary() -> None:
    """Of 49,152 tokens one takes half of the probability and the rest share the other half evenly."""
    width, draws = 49_152, 400
    logits = np.zeros((draws, width), dtype=np.float32)
    logits[:, 77] = np.log(width - 1)
    won = Race(width, CPU).over_all(
        torch.from_numpy(logits), np.full(draws, float(logits.max())), np.ones(draws), keys(draws)
    )
    hits = int((won == 77).sum())
    assert abs(hits - draws / 2) < 4 * np.sqrt(draws / 4)
    others = won[won != 77]
    assert len(set(others.tolist())) > 0.95 * len(others)  # 200 of 49,151 hardly ever meet
    assert abs(others.mean() / width - 0.5) < 4 * np.sqrt(1 / 12 / len(others))
