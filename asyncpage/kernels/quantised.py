"""The native product of rows and quantised weights, called by addresses and without the interpreter's lock (ctypes).

`models.quantised_linear` makes tables with it and multiplies by them. Sources: `cpu/`.

INVARIANT: a table holds what the file's blocks mean, bit for bit; a row's product depends on that row and the table
alone, not on how many rows or threads there are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Layout:
    """What `columns` columns of a row take: in the file, and in a table."""

    columns: int
    file_bytes: int
    table_bytes: int


LAYOUTS: Mapping[str, Layout] = {
    "Q4_0": Layout(32, 18, 18),
    "Q4_1": Layout(32, 20, 20),
    "Q5_0": Layout(32, 22, 22),
    "Q5_1": Layout(32, 24, 24),
    "Q8_0": Layout(32, 34, 34),
    "Q4_K": Layout(256, 144, 148),
    "Q5_K": Layout(256, 176, 180),
    "Q6_K": Layout(256, 210, 210),
    "F32": Layout(1, 4, 4),
}
"""Of the kinds of matrices that there are products for, in the order of linear.cpp; by GGUF's names."""

FLOATS = "F32"
"""The kind of a matrix that is on no grid: it is multiplied in float32, its columns one after the other."""

GRIDS = frozenset(LAYOUTS) - {FLOATS}
"""The others."""

_NUMBERS = {kind: number for number, kind in enumerate(LAYOUTS)}
_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p


def kind_number(kind: str) -> int:
    """What the library calls a kind."""
    return _NUMBERS[kind]


def table_bytes(kind: str, rows: int, columns: int, lanes: int) -> int:
    """What a matrix takes in a table of a `Variant` with these `lanes`; columns are whole blocks of the file's."""
    layout = LAYOUTS[kind]
    return -(-rows // lanes) * lanes * (columns // layout.columns) * layout.table_bytes


class QuantisedProducts:
    """Of `library`, working on `threads` threads.

    Addresses are of contiguous memory; that it is there and large enough is the caller's care.
    """

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self._threads = threads
        self._pack, self._read, self._linear = (
            getattr(library, f"asyncpage_{name}") for name in ("pack", "read", "linear")
        )
        number = ctypes.c_int
        self._table_bytes = library.asyncpage_table_bytes
        self._table_bytes.argtypes, self._table_bytes.restype = (number, _INT, _INT), _INT
        self._pack.argtypes, self._pack.restype = (number, _POINTER, _INT, _INT, _INT, _POINTER), None
        self._read.argtypes = (number, _POINTER, _INT, _INT, _POINTER, _INT, _POINTER)
        self._read.restype = number
        self._linear.argtypes = (number, *(_POINTER,) * 3, *(_INT,) * 5, number, number)
        self._linear.restype = number

    def table_bytes(self, kind: str, rows: int, columns: int) -> int:
        """As the function of this name, of the library's variant."""
        found: int = self._table_bytes(_NUMBERS[kind], rows, columns)
        return found

    def pack(self, kind: str, blocks: Bytes, columns: int, first: int, table: int) -> None:
        """Put rows of the file's blocks, [rows, bytes of a row], into a table of zeros, from its row `first` on."""
        rows = np.ascontiguousarray(blocks)
        layout = LAYOUTS[kind]
        assert rows.shape[1] == columns // layout.columns * layout.file_bytes, "rows are not as long as the table's"
        self._pack(_NUMBERS[kind], rows.ctypes.data, len(rows), columns, first, table)

    def look_up(self, kind: str, table: int, rows: int, columns: int, ids: int, count: int, out: int) -> None:
        """Rows `ids`, `count` int64, of the table of `rows` rows, in float32. Errors: `IndexError` for what is none."""
        if self._read(_NUMBERS[kind], table, rows, columns, ids, count, out):
            raise IndexError(f"a token is not one of the {rows} of this table")

    def multiply(
        self,
        kind: str,
        table: int,
        x: int,
        y: int,
        count: int,
        columns: int,
        rows: int,
        x_stride: int,
        y_stride: int,
        adds: bool = False,
    ) -> None:
        """y [count, rows] = x [count, columns] times the table of `rows` rows, all float32; y grows where it `adds`.

        Strides are in numbers, from a row to the next; within a row numbers are beside each other. Errors:
        `MemoryError`.
        """
        sizes = (count, columns, rows, x_stride, y_stride)
        if self._linear(_NUMBERS[kind], table, x, y, *sizes, adds, self._threads):
            raise MemoryError(f"no memory to round {count} rows of {columns} numbers")
