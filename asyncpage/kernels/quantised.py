"""The native product of rows and quantised weights, called by addresses and without the interpreter's lock (ctypes).

`models.quantised_linear` makes tables with it and multiplies by them. Sources: `cpu/`.

INVARIANT: a table holds what the file's blocks mean, bit for bit; a row's product depends on that row and the table
alone, not on how many rows or threads there are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

BLOCK_BYTES: Mapping[str, int] = {"Q4_0": 144, "Q4_1": 160, "Q5_0": 176, "Q5_1": 192, "Q8_0": 272}
"""By GGUF's names of the grids that there are products for, in the order of linear.cpp: what 8 rows of 32 columns
take in a table."""

FILE_BYTES: Mapping[str, int] = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34}
"""What 32 columns of a row take in the file."""

_NUMBERS = {kind: number for number, kind in enumerate(BLOCK_BYTES)}
_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p


def table_bytes(kind: str, rows: int, columns: int) -> int:
    """What a matrix takes in a table; columns are whole blocks of the file's."""
    return -(-rows // 8) * (columns // 32) * BLOCK_BYTES[kind]


class QuantisedProducts:
    """The library at `path`, working on `threads` threads. Errors of the constructor: `OSError`, it does not load.

    Addresses are of contiguous memory; that it is there and large enough is the caller's care.
    """

    def __init__(self, path: Path, threads: int) -> None:
        library = ctypes.CDLL(str(path))
        self._threads = threads
        self._pack, self._read, self._linear = (
            getattr(library, f"asyncpage_{name}") for name in ("pack", "read", "linear")
        )
        number = ctypes.c_int
        self._pack.argtypes, self._pack.restype = (number, _POINTER, _INT, _INT, _INT, _POINTER), None
        self._read.argtypes = (number, _POINTER, _INT, _INT, _POINTER, _INT, _POINTER)
        self._read.restype = number
        self._linear.argtypes = (number, *(_POINTER,) * 3, *(_INT,) * 5, number, number)
        self._linear.restype = number

    def pack(self, kind: str, blocks: Bytes, columns: int, first: int, table: int) -> None:
        """Put rows of the file's blocks, [rows, bytes of a row], into a table of zeros, from its row `first` on."""
        rows = np.ascontiguousarray(blocks)
        assert rows.shape[1] == columns // 32 * FILE_BYTES[kind], "rows are not as long as the table's"
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
