"""Parts whose weights stay on the grid of a GGUF file: a linear map, and an embedding that shares its table.

`Parameters` makes them where it is given `Grids`, of matrices on no grid, too; their arithmetic is the native code of
`kernels.quantised`.

INVARIANT: a row's output is made of that row and the weights alone, bit for bit, whatever is beside it; a row of NaN
spoils no other row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from asyncpage.kernels.quantised import FLOATS, GRIDS, QuantisedProducts, table_bytes
from asyncpage.models.probe import HeldAs
from asyncpage.models.table_memory import TableMemory
from asyncpage.weights.quantise import COLUMNS
from asyncpage.weights.stored import Grid

_WIDE = ("lm_head.weight", "model.embed_tokens.weight")


@dataclass(frozen=True, slots=True)
class MadeGrid:
    """The `kind` that matrices are put on as they are loaded, and `wide_kind` for those with a row for each token,
    which need more bits."""

    kind: str
    wide_kind: str


@dataclass(frozen=True, slots=True, eq=False)
class Grids:
    """Where weights on a grid come from. `grid(name)`: how the file has a matrix, None for no grid at all.

    `blocks(name)`: its rows' blocks, some at a time. `lanes`: how many rows of a table lie together. `products`: the
    native code; None for a model without values. `made`: what a matrix on no grid of its own is put on, if anything.
    `memory`: where tables lie.
    """

    grid: Callable[[str], Grid | None]
    blocks: Callable[[str], Iterator[Any]]
    lanes: int
    products: QuantisedProducts | None = None
    made: MadeGrid | None = None
    memory: TableMemory = field(default_factory=TableMemory)

    def find(self, name: str) -> Grid | None:
        """The grid of a matrix that there are products for."""
        found = self.grid(name)
        return found if found is not None and found.kind in GRIDS else None

    def kind(self, name: str, rows: int, columns: int) -> str:
        """What a matrix is held as. One of another shape is on no grid here, and refused as it is read."""
        grid = self.find(name)
        if grid is not None and (grid.rows, grid.columns) == (rows, columns):
            return grid.kind
        if self.made is None or columns % COLUMNS:
            return FLOATS
        return self.made.wide_kind if name in _WIDE else self.made.kind

    def table_bytes(self, kind: str, rows: int, columns: int) -> int:
        """What a table takes."""
        return table_bytes(kind, rows, columns, self.lanes)

    def table(self, pieces: Iterable[Any], kind: str, rows: int, columns: int) -> QuantisedTable:
        """A matrix of `rows` rows, of their blocks: uint8 [some rows, bytes of a row] at a time, in order."""
        assert self.products is not None
        size = self.table_bytes(kind, rows, columns)
        data, first = self.memory.take(size), 0
        for blocks in pieces:
            assert first + len(blocks) <= rows, "more rows than the table has"
            self.products.pack(kind, blocks, columns, first, data.data_ptr())
            first += len(blocks)
        assert first == rows, "fewer rows than the table has"
        return QuantisedTable(data, kind, rows, columns, size, self.products)


@dataclass(frozen=True, slots=True)
class QuantisedTable:
    """A matrix [rows, columns] on a grid. `data`: its `size` bytes, as `products` has them.

    Without `products` it has no values: `data` is [rows, columns] of what is computed in, and torch multiplies by it,
    so that what a model does can be listed.
    """

    data: Tensor
    kind: str
    rows: int
    columns: int
    size: int
    products: QuantisedProducts | None

    def linear(self, bias: Tensor | None) -> QuantisedLinear:
        multiply = None if self.products is None else self.products.multiply
        return QuantisedLinear(self.data, self.kind, self.rows, self.columns, self.size, multiply, bias)

    def embedding(self, scale: float) -> QuantisedEmbedding:
        look_up = None if self.products is None else self.products.look_up
        return QuantisedEmbedding(self.data, self.kind, self.rows, self.columns, self.size, look_up, scale)


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedLinear:
    """See `QuantisedTable`. `bias` [rows] or None."""

    weight: Tensor
    kind: str
    rows: int
    columns: int
    size: int
    multiply: Callable[[str, int, int, int, int, int, int, int, int], None] | None
    bias: Tensor | None = None

    @property
    def held(self) -> HeldAs:
        return HeldAs(self.kind, self.size)

    def __call__(self, x_TI: Tensor, out_TO: Tensor | None = None) -> Tensor:
        """`out_TO`: where it is to be put, rows that may lie apart; by default a new tensor."""
        if self.multiply is None:
            return functional.linear(x_TI, self.weight, self.bias)
        if out_TO is None:
            out_TO = torch.empty(len(x_TI), self.rows)
        for given, width in ((x_TI, self.columns), (out_TO, self.rows)):
            assert given.dtype == torch.float32, "native code trusts what it is given"
            assert given.shape == (len(x_TI), width), "native code trusts what it is given"
        assert out_TO.stride(1) == 1 or self.rows == 1, "native code trusts what it is given"
        x_TI = x_TI if x_TI.stride(1) == 1 else x_TI.contiguous()
        self.multiply(
            self.kind,
            self.weight.data_ptr(),
            x_TI.data_ptr(),
            out_TO.data_ptr(),
            len(x_TI),
            self.columns,
            self.rows,
            x_TI.stride(0),
            out_TO.stride(0),
        )
        return out_TO if self.bias is None else out_TO.add_(self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedEmbedding:
    """Rows of a `QuantisedTable` by their numbers, in float32; multiplied by `scale`."""

    weight: Tensor
    kind: str
    rows: int
    columns: int
    size: int
    look_up: Callable[[str, int, int, int, int, int, int], None] | None
    scale: float = 1.0

    @property
    def held(self) -> HeldAs:
        return HeldAs(self.kind, self.size)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    def __call__(self, tokens_T: Tensor) -> Tensor:
        if self.look_up is None:
            return functional.embedding(tokens_T, self.weight)
        tokens_T = tokens_T.to(torch.int64).contiguous()
        hidden_TE = torch.empty(len(tokens_T), self.columns)
        self.look_up(
            self.kind,
            self.weight.data_ptr(),
            self.rows,
            self.columns,
            tokens_T.data_ptr(),
            len(tokens_T),
            hidden_TE.data_ptr(),
        )
        return hidden_TE if self.scale == 1.0 else hidden_TE.mul_(self.scale)


@dataclass(frozen=True, slots=True, eq=False)
class SideBySide:
    """Linear maps of the same rows, their outputs one behind the other: for weights of several kinds."""

    parts: Sequence[QuantisedLinear]

    def __call__(self, x_TI: Tensor) -> Tensor:
        if any(part.multiply is None for part in self.parts):
            return torch.cat([part(x_TI) for part in self.parts], dim=-1)
        widths = [part.rows for part in self.parts]
        out_TO = torch.empty(len(x_TI), sum(widths))
        for part, part_TO in zip(self.parts, torch.split(out_TO, widths, dim=-1), strict=True):
            part(x_TI, part_TO)
        return out_TO


@dataclass(frozen=True, slots=True, eq=False)
class HeadBesideHead:
    """A linear map for each head: rows [T, heads, in] to [T, heads, out]."""

    heads: Sequence[QuantisedLinear]

    def __call__(self, x_THI: Tensor) -> Tensor:
        out_THO = torch.empty(len(x_THI), len(self.heads), self.heads[0].rows)
        for head, linear in enumerate(self.heads):
            linear(x_THI[:, head], out_THO[:, head])
        return out_THO
