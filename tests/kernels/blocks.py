"""Random blocks of a file, what the reference library says that they mean, and products by them in float64."""

from __future__ import annotations

import gguf
import numpy as np
import torch

from asyncpage.kernels.quantised import FLOATS

HALVES = {
    "Q4_0": ((0, 1),), "Q4_1": ((0, 2),), "Q5_0": ((0, 1),), "Q5_1": ((0, 2),), "Q8_0": ((0, 1),),
    "Q4_K": ((0, 2),), "Q5_K": ((0, 2),), "Q6_K": ((208, 1),), "F32": (),
}  # fmt: skip
"""Where the half-precision numbers of a file's block lie, and how many."""


def random_blocks(kind: str, rows: int, columns: int, seed: int) -> np.ndarray:
    """Rows as a file has them: uint8 [rows, bytes of a row]."""
    dice = np.random.default_rng(seed)
    if kind == FLOATS:
        return dice.normal(size=(rows, columns)).astype(np.float32).view(np.uint8)
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = dice.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    for place, parts in HALVES[kind]:
        scales = dice.normal(size=(*raw.shape[:2], parts)).astype(np.float16)
        raw[:, :, place : place + 2 * parts] = scales.view(np.uint8)
    return raw.reshape(rows, -1)


def values_of(kind: str, blocks: np.ndarray) -> np.ndarray:
    """Float32 [rows, columns]."""
    found: np.ndarray = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    return found


def rounded(x: torch.Tensor) -> np.ndarray:
    """Activations as the product sees them: to 127ths of the greatest of each 32."""
    blocks = x.double().numpy().reshape(len(x), -1, 32)
    greatest = np.abs(x.numpy().reshape(blocks.shape)).max(axis=2, keepdims=True)
    factor = (np.float32(127.0) / greatest).astype(np.float32)
    scale = (greatest / np.float32(127.0)).astype(np.float64)
    steps = np.rint(x.numpy().reshape(blocks.shape) * factor)
    return (steps.astype(np.float64) * scale).reshape(len(x), -1)


def product(kind: str, blocks: np.ndarray, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Of rows and the blocks' rows, and the sum of its terms' magnitudes."""
    a = x.double().numpy() if kind == FLOATS else rounded(x)
    w = values_of(kind, blocks).astype(np.float64)
    return a @ w.T, np.abs(a) @ np.abs(w).T


def rows_like(count: int, columns: int, seed: int = 1) -> torch.Tensor:
    """With scales from one block to the next as far apart as real ones'."""
    dice = np.random.default_rng(seed)
    scales = np.exp(dice.normal(size=(count, columns // 32, 1)) * 3)
    return torch.from_numpy((dice.normal(size=(count, columns // 32, 32)) * scales).reshape(count, -1).astype("f4"))
