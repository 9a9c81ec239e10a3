"""Rows put on a grid: what the reference library makes of them, and as near to them as the grid allows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from asyncpage.weights.quantise import quantised_rows

LEVELS = {"Q8_0": 254, "Q4_1": 15}


def matrix(rows: int, columns: int) -> torch.Tensor:
    dice = torch.Generator().manual_seed(rows)
    scales = torch.randn(rows, columns // 32, 1, generator=dice).exp()
    found = torch.randn(rows, columns // 32, 32, generator=dice) * scales
    found[0, 0] = 0.0
    found[-1, -1] = 0.25
    found[0, -1, 5] = 40.0
    return found.view(rows, columns)


@pytest.mark.parametrize("kind", LEVELS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (7, 96), (3000, 512)])
def test_blocks_mean_the_rows_to_half_a_step(kind: str, rows: int, columns: int) -> None:
    given = matrix(rows, columns)
    pieces = list(quantised_rows(given, kind))
    assert len(pieces) == (2 if rows == 3000 else 1)
    found = quants.dequantize(np.concatenate(pieces), GGMLQuantizationType[kind]).reshape(rows, -1, 32)
    wanted = given.numpy().reshape(rows, -1, 32)
    greatest, least = wanted.max(axis=2, keepdims=True), wanted.min(axis=2, keepdims=True)
    span = 2 * np.abs(wanted).max(axis=2, keepdims=True) if kind == "Q8_0" else greatest - least
    # Half a step, and what 11 bits of a scale and of an offset leave out.
    most = span / LEVELS[kind] * 0.5 + 2.0**-11 * (span + np.abs(least))
    assert (np.abs(found - wanted) <= most + 1e-7).all()


@pytest.mark.parametrize("kind", LEVELS)
def test_blocks_are_those_of_the_reference_library(kind: str) -> None:
    """But for halves between two levels, which one rounds to the even and the other up."""
    given = matrix(200, 256)
    found = np.concatenate(list(quantised_rows(given, kind)))
    wanted = quants.quantize(given.numpy(), GGMLQuantizationType[kind])
    assert found.shape == wanted.shape
    assert (found != wanted).mean() < 1e-3
