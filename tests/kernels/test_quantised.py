"""The native product against float64 of what the reference library says a file's blocks mean."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import gguf
import numpy as np
import pytest
import torch

from asyncpage.kernels.native import Native
from asyncpage.kernels.quantised import FLOATS, LAYOUTS, QuantisedProducts, table_bytes
from tests.kernels.blocks import product, random_blocks, rows_like, values_of

KINDS = tuple(LAYOUTS)


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
        return values_of(self.kind, self.blocks)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.full((len(x), self.rows), 777.0)
        self.write(x, y)
        return y

    def write(self, x: torch.Tensor, y: torch.Tensor, *, adds: bool = False) -> None:
        at = (self.data.data_ptr(), x.data_ptr(), y.data_ptr())
        sizes = (len(x), self.columns, self.rows)
        self.products.multiply(self.kind, *at, *sizes, x.stride(0), y.stride(0), adds)

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(ids), self.columns)
        at = (ids.data_ptr(), len(ids), out.data_ptr())
        self.products.look_up(self.kind, self.data.data_ptr(), self.rows, self.columns, *at)
        return out


def make(library: Native, kind: str, rows: int, columns: int, *, threads: int = 1, seed: int = 0) -> Table:
    blocks = random_blocks(kind, rows, columns, seed)
    assert library.path is not None
    assert library.variant is not None
    products = QuantisedProducts(ctypes.CDLL(str(library.path)), threads)
    taken = table_bytes(kind, rows, columns, library.variant.lanes)
    data = torch.zeros(taken + 64, dtype=torch.uint8)
    data = data[-data.data_ptr() % 64 :][:taken]
    first = rows // 3  # a table is packed in any number of pieces
    products.pack(kind, blocks[:first], columns, 0, data.data_ptr())
    products.pack(kind, blocks[first:], columns, first, data.data_ptr())
    return Table(kind, rows, columns, products, blocks, data)


def check(table: Table, x: torch.Tensor) -> None:
    wanted, size = product(table.kind, table.blocks, x)
    np.testing.assert_array_less(np.abs(table.multiply(x).double().numpy() - wanted), 3e-6 * size + 1e-30)


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_is_that_of_the_files_weights_and_the_rounded_rows(library: Native, kind: str) -> None:
    for rows, columns in ((1, 256), (7, 256), (8, 512), (65, 768), (131, 1536)):
        table = make(library, kind, rows, columns, seed=rows)
        for count in (*range(1, 18), 31, 63, 64, 65, 70):
            check(table, rows_like(count, columns, count))
    check(make(library, kind, 21, 256), rows_like(1000, 256))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.endswith("_K")])  # which nobody makes here
def test_a_table_of_rounded_weights_is_as_near_to_them_as_its_kind(library: Native, kind: str) -> None:
    """With blocks as a quantiser makes them, against the product of the very weights."""
    quant = gguf.GGMLQuantizationType[kind]
    weights = np.random.default_rng(3).normal(size=(40, 512)).astype(np.float32)
    table = make(library, kind, 40, 512)
    table.data.zero_()
    table.blocks = gguf.quants.quantize(weights, quant).view(np.uint8)
    table.products.pack(kind, table.blocks, 512, 0, table.data.data_ptr())
    x = rows_like(9, 512)
    wanted = x.double().numpy() @ table.values().astype(np.float64).T
    off = np.linalg.norm(table.multiply(x).double().numpy() - wanted) / np.linalg.norm(wanted)
    assert off < 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_to_the_bit_alone_in_any_batch_and_on_any_number_of_threads(
    library: Native, kind: str
) -> None:
    x = rows_like(70, 768)
    table, threaded = (make(library, kind, 100, 768, threads=threads) for threads in (1, 3))
    alone = torch.cat([table.multiply(x[row : row + 1]) for row in range(70)])
    for count in range(1, 71):
        for one in (table, threaded):
            assert torch.equal(one.multiply(x[70 - count :].clone()), alone[70 - count :])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_may_lie_apart_and_what_is_between_them_stays(library: Native, kind: str) -> None:
    table, x = make(library, kind, 21, 256, threads=2), rows_like(70, 3 * 256)
    x, y = x[:, 256:512], torch.full((70, 50), 777.0)
    table.write(x, y[:, 7:28])
    assert torch.equal(y[:, 7:28], table.multiply(x.contiguous()))
    assert (y[:, :7] == 777.0).all()
    assert (y[:, 28:] == 777.0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_is_added_to_what_was_there(library: Native, kind: str) -> None:
    table, x, y = make(library, kind, 21, 256), rows_like(11, 256), rows_like(11, 64)
    wanted = y.clone()
    wanted[:, :21] += table.multiply(x)
    table.write(x, y[:, :21], adds=True)
    assert torch.equal(y, wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_with_what_is_no_number_is_no_number_and_its_neighbours_are_as_before(
    library: Native, kind: str, bad: float
) -> None:
    x = rows_like(13, 512)
    table = make(library, kind, 30, 512)
    before = table.multiply(x)
    for row, column in ((0, 0), (5, 37), (12, 511)):
        spoilt = x.clone()
        spoilt[row, column] = bad
        after = table.multiply(spoilt)
        # In float32 infinity stays what it is.
        assert (after[row].isnan() | (after[row].isinf() & (kind == FLOATS))).all()
        others = torch.arange(13) != row
        assert torch.equal(after[others], before[others])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_zeros_and_of_the_smallest_and_greatest_numbers_stay_numbers(library: Native, kind: str) -> None:
    table = make(library, kind, 9, 256)
    assert torch.equal(table.multiply(torch.zeros(3, 256)), torch.zeros(3, 9))
    for scale in (1e-44, 1e-38, 1e-33, 1e-20, 1e30):
        x = rows_like(3, 256) * scale
        wanted = x.double().numpy() @ table.values().astype(np.float64).T
        size = np.abs(x.double().numpy()) @ np.abs(table.values().astype(np.float64)).T
        found = table.multiply(x).double().numpy()
        assert np.isfinite(found).all()
        assert (np.abs(found - wanted) <= 0.01 * size + 256 * 1e-29).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_looked_up_are_the_files_to_the_bit(library: Native, kind: str) -> None:
    table = make(library, kind, 77, 512)
    ids = torch.tensor([0, 76, 8, 7, 8, 63, 64])
    np.testing.assert_array_equal(table.look_up(ids).numpy(), table.values()[ids.numpy()])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_no_rows_are_no_work(library: Native, threads: int) -> None:
    table = make(library, "Q4_1", 70, 256, threads=threads)
    assert table.multiply(torch.empty(0, 256)).shape == (0, 70)
    assert table.look_up(torch.empty(0, dtype=torch.int64)).shape == (0, 256)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_not_there_is_refused_and_nothing_is_read(library: Native, kind: str) -> None:
    table = make(library, kind, 13, 256)  # its memory has 16
    for bad in (-1, 13, 15, 1 << 40):
        with pytest.raises(IndexError, match="not one of the 13"):
            table.look_up(torch.tensor([0, bad]))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_block_takes_is_as_the_reference_says(kind: str) -> None:
    layout = LAYOUTS[kind]
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]] == (layout.columns, layout.file_bytes)
    assert layout.table_bytes <= 1.1 * layout.file_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_takes_what_is_said(library: Native, kind: str) -> None:
    assert library.variant is not None
    table = make(library, kind, 21, 512)
    wanted = table.products.table_bytes(kind, 21, 512)
    assert table_bytes(kind, 21, 512, library.variant.lanes) == len(table.data) == wanted


def test_a_matrix_on_no_grid_has_any_number_of_columns(library: Native) -> None:
    for rows, columns in ((1, 1), (40, 7), (33, 100), (5, 1023)):
        table, x = make(library, FLOATS, rows, columns), torch.randn(19, columns)
        check(table, x)
        np.testing.assert_array_equal(table.look_up(torch.tensor([rows - 1])).numpy(), table.values()[-1:])


def test_callers_of_several_threads_at_once_each_get_their_own_product(library: Native) -> None:
    tables = [make(library, kind, 64, 512, threads=2, seed=number) for number, kind in enumerate(KINDS)]
    x = rows_like(40, 512)
    wanted = [table.multiply(x) for table in tables]
    with ThreadPoolExecutor(len(tables)) as threads:
        for _ in range(50):
            found = threads.map(lambda table: table.multiply(x), tables)
            assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
