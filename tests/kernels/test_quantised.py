"""The native product against float64 of what the reference library says a file's blocks mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from asyncpage.kernels import native
from asyncpage.kernels.quantised import BLOCK_BYTES, QuantisedProducts, table_bytes

KINDS = tuple(BLOCK_BYTES)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = native.build(tmp_path_factory.mktemp("native"))
    assert found.path is not None, found.reason
    return found.path


@dataclass
class Table:
    """Random blocks of a file, and the same as a table."""

    kind: str
    rows: int
    columns: int
    products: QuantisedProducts
    blocks: np.ndarray
    data: torch.Tensor

    def values(self) -> np.ndarray:
        return gguf.quants.dequantize(self.blocks, gguf.GGMLQuantizationType[self.kind])

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.full((len(x), self.rows), 777.0)
        at = (self.data.data_ptr(), x.data_ptr(), y.data_ptr())
        self.products.multiply(self.kind, *at, len(x), self.columns, self.rows)
        return y

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(ids), self.columns)
        self.products.look_up(self.kind, self.data.data_ptr(), self.columns, ids.data_ptr(), len(ids), out.data_ptr())
        return out


def make(library: Path, kind: str, rows: int, columns: int, *, threads: int = 1, seed: int = 0) -> Table:
    dice = np.random.default_rng(seed)
    quant = gguf.GGMLQuantizationType[kind]
    elements, size = gguf.GGML_QUANT_SIZES[quant]
    raw = dice.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    for place in HALVES[kind]:
        scales = dice.normal(size=raw.shape[:2]).astype(np.float16)
        raw[:, :, place : place + 2] = scales[:, :, None].view(np.uint8)
    blocks = raw.reshape(rows, -1)
    products = QuantisedProducts(library, threads)
    data = torch.zeros(table_bytes(kind, rows, columns) + 64, dtype=torch.uint8)
    data = data[-data.data_ptr() % 64 :][: table_bytes(kind, rows, columns)]
    first = rows // 3  # a table is packed in any number of pieces
    products.pack(kind, blocks[:first], columns, 0, data.data_ptr())
    products.pack(kind, blocks[first:], columns, first, data.data_ptr())
    return Table(kind, rows, columns, products, blocks, data)


HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)}
"""Where the half-precision numbers of a file's block lie."""


def rounded(x: torch.Tensor) -> np.ndarray:
    """Activations as the product sees them: to 127ths of the greatest of each 32."""
    blocks = x.double().numpy().reshape(len(x), -1, 32)
    greatest = np.abs(x.numpy().reshape(blocks.shape)).max(axis=2, keepdims=True)
    factor = (np.float32(127.0) / greatest).astype(np.float32)
    scale = (greatest / np.float32(127.0)).astype(np.float64)
    steps = np.rint(x.numpy().reshape(blocks.shape) * factor)
    return (steps.astype(np.float64) * scale).reshape(len(x), -1)


def expected(table: Table, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The product in float64, and the sum of its terms' magnitudes."""
    a, w = rounded(x), table.values().astype(np.float64)
    return a @ w.T, np.abs(a) @ np.abs(w).T


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_is_that_of_the_files_weights_and_the_rounded_rows(library: Path, kind: str) -> None:
    dice = np.random.default_rng(1)
    for rows, columns in ((1, 256), (7, 256), (8, 512), (576, 256), (65, 768), (131, 1536)):
        table = make(library, kind, rows, columns, seed=rows)
        for count in (*range(1, 20), 33, 63, 64, 65, 70):
            x = torch.from_numpy(dice.normal(size=(count, columns)).astype(np.float32))
            found = table.multiply(x).double().numpy()
            wanted, size = expected(table, x)
            np.testing.assert_array_less(np.abs(found - wanted), 3e-6 * size + 1e-30)
