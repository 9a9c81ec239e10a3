"""Puts rows of float32 on a grid, in blocks as a GGUF file has them: for weights that come on none.

`models.parameter` asks, where quantising on load was asked for.

INVARIANT: a weight is moved by half a step of its block's grid at most, and by what rounding the step, and the least
weight of four bits, to half precision adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
from torch import Tensor

Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]

COLUMNS = 32
"""Of a block: a matrix must have whole ones."""

_PIECE = 1 << 20  # weights at a time


def quantised_rows(matrix: Tensor, kind: str) -> Iterator[Bytes]:
    """`matrix` [rows, columns] float32 on the CPU, as blocks of `kind`: uint8 [some rows, bytes of a row] at a time."""
    rows, columns = matrix.shape
    step = max(1, _PIECE // columns)
    for start in range(0, rows, step):
        piece = matrix[start : start + step].numpy()
        yield _KINDS[kind](piece.reshape(-1, COLUMNS)).reshape(len(piece), -1)


def _in_eight_bits(blocks: _Floats) -> Bytes:
    """A scale and signed bytes: the greatest magnitude of a block is 127."""
    greatest = np.abs(blocks).max(axis=1, keepdims=True)
    levels = np.rint(blocks * _inverse(greatest / np.float32(127)))
    return np.concatenate([_halves(greatest / np.float32(127)), levels.astype(np.int8).view(np.uint8)], axis=1)


def _in_four_bits(blocks: _Floats) -> Bytes:
    """A scale, the least weight, and levels from it to 15 above: those of a block's first half in the low bits."""
    least = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - least) / np.float32(15)
    levels = np.clip(np.rint((blocks - least) * _inverse(scale)), 0, 15).astype(np.uint8)
    both = levels[:, : COLUMNS // 2] | levels[:, COLUMNS // 2 :] << 4
    return np.concatenate([_halves(scale), _halves(least), both], axis=1)


def _inverse(scale: _Floats) -> _Floats:
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)


def _halves(values: _Floats) -> Bytes:
    return values.astype("<f2").view(np.uint8)


_KINDS: Mapping[str, Callable[[_Floats], Bytes]] = {"Q8_0": _in_eight_bits, "Q4_1": _in_four_bits}
