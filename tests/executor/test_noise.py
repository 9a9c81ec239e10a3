"""The generator of races: against its definition in plain integers, and against the exponential distribution."""

import numpy as np
import pytest
import torch

from asyncpage.executor import noise

WORD = 2**32 - 1
LONG = 2**64 - 1


def finaliser(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & LONG
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & LONG
    return z ^ (z >> 31)


def lowbias32(x: int) -> int:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & WORD
    return x ^ (x >> 16)


def defined_bits(seed: int, number: int, index: int) -> int:
    golden = 0x9E3779B97F4A7C15
    key = finaliser((finaliser((seed + golden) & LONG) + number * golden) & LONG)
    x = ((lowbias32(index + 1) ^ (key & WORD)) * 0x7FEB352D) & WORD
    x = (((x ^ (x >> 15)) + (key >> 32)) * 0x846CA68B) & WORD
    return (x ^ (x >> 16)) & 0x7FFFFFFF


def bits(seeds: list[int], numbers: list[int], width: int) -> np.ndarray:
    streams = np.array([noise.stream_of(seed) for seed in seeds], dtype=np.uint64)
    keys = torch.from_numpy(noise.keys(streams, np.array(numbers)))
    return noise.bits(noise.vocabulary_table(width), keys).numpy()


@pytest.mark.parametrize("width", [1, 7, 512, 1003])
def test_bits_are_those_of_the_definition_in_plain_integers(width: int) -> None:
    seeds, numbers = [0, 1, -1, 2**63 - 1, -(2**63), 42], [0, 1, 2, 10**6, 31, 42]
    expected = [[defined_bits(s, n, i) for i in range(width)] for s, n in zip(seeds, numbers, strict=True)]
    assert bits(seeds, numbers, width).tolist() == expected


def test_a_stream_is_known_in_advance_on_every_machine() -> None:
    # splitmix64 seeded with 0 begins with this number (its published test vector).
    assert noise.stream_of(0) == 0xE220A8397B1DCDAF


def test_chosen_columns_have_the_bits_of_the_whole_table() -> None:
    table, keys = noise.vocabulary_table(500), torch.tensor([[5, -9]], dtype=torch.int32)
    ids = torch.tensor([499, 0, 17])
    assert noise.bits(table[ids], keys)[0].tolist() == noise.bits(table, keys)[0, ids].tolist()


def test_given_buffers_are_used() -> None:
    table, keys = noise.vocabulary_table(40), torch.tensor([[5, -9], [1, 2]], dtype=torch.int32)
    out, scratch = torch.empty((2, 40), dtype=torch.int32), torch.empty((2, 40), dtype=torch.int32)
    made = noise.bits(table, keys, out, scratch)
    assert made.data_ptr() == out.data_ptr()
    assert made.tolist() == noise.bits(table, keys).tolist()


def kolmogorov_distance(sample: np.ndarray) -> float:
    """Times the square root of the sample's size; above 1.95 once in a thousand true exponential samples."""
    sample = np.sort(sample)
    levels = np.arange(1, len(sample) + 1) / len(sample)
    return float(np.abs(1 - np.exp(-sample) - levels).max() * np.sqrt(len(sample)))


def test_variates_are_exponential_across_the_vocabulary_and_across_seeds_and_along_an_answer() -> None:
    along_vocabulary = noise.exponentials(bits([7], [3], 100_000)[0])
    along_seeds = noise.exponentials(bits(list(range(20_000)), [0] * 20_000, 3)[:, 2])
    along_numbers = noise.exponentials(bits([11] * 20_000, list(range(20_000)), 3)[:, 0])
    for sample in (along_vocabulary, along_seeds, along_numbers):
        assert kolmogorov_distance(sample) < 1.95


def test_neighbouring_indices_numbers_and_seeds_do_not_go_together() -> None:
    grid = noise.exponentials(bits([s for s in range(200) for _ in range(50)], list(range(50)) * 200, 8).ravel())
    grid = grid.reshape(200, 50, 8) - 1  # the mean of an exponential is 1, its variance too
    for a, b in ((grid[1:], grid[:-1]), (grid[:, 1:], grid[:, :-1]), (grid[:, :, 1:], grid[:, :, :-1])):
        correlation = (a * b).mean() * np.sqrt(a.size)  # standard normal when independent
        assert abs(correlation) < 4


def test_the_smallest_and_largest_bits_give_positive_finite_variates() -> None:
    low, high = noise.exponentials(np.array([0, 2**31 - 1], dtype=np.int32))
    assert low == pytest.approx(0.5 / 2**31, rel=1e-9)  # -log1p(-u) is u where u is this small
    assert high == pytest.approx(32 * np.log(2), rel=1e-9)  # u is 1 - 2**-32
