"""Takes a model's tensors by name from whatever holds them, checked and on their device, and makes linear maps of them.

Families ask it for everything that they are made of. Errors name the tensor: a missing one, a wrong shape.

INVARIANT: every linear map of a model is made by `linear`, by the names that its tensors have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncpage.errors import ModelError
from asyncpage.kernels.loaded import current_library
from asyncpage.kernels.quantised import FLOATS
from asyncpage.models.experts import AllHere, ExpertHost
from asyncpage.models.gate import native_gate, native_kind
from asyncpage.models.layers import Embedding, HeadLinear, Linear, RowMap, TokenRows, WidenedLinear
from asyncpage.models.quantised_linear import Grids, HeadBesideHead, QuantisedLinear, QuantisedTable, SideBySide
from asyncpage.weights.quantise import quantised_rows
from asyncpage.weights.stored import Grid

TakeTensor = Callable[[str], Tensor]
"""tensor(name) -> the tensor, in any float dtype; `KeyError` or `ModelError` when there is none."""

Adapt = Callable[[Sequence[str], Sequence[int], int, RowMap], RowMap]
"""adapt(stems, rows, columns, linear) -> what to use in a linear map's place, for those who would change it."""

Label = Callable[[Sequence[str], Tensor], Tensor]
"""label(names, tensor) -> what to use in the place of a tensor without values that is made of those."""


class Parameters:
    """What is taken comes from `tensor` and is in `dtype` on `device`; what is held, in `held`, by default the same.

    Without `tensor` there are no values: what is taken has its shape and no memory of its own. `taken_bytes`: of all
    that was taken so far. `adapt` is asked of every linear map. `experts`: who runs the experts of a model that has
    some. `label` is asked of what has no values. `names`: of all tensors that there are. `grids`: of those that are not
    dequantised, None where all are; with it every matrix that is held is a table, on its grid or in float32.
    """

    def __init__(
        self,
        tensor: TakeTensor | None,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        held: torch.dtype | None = None,
        adapt: Adapt | None = None,
        experts: ExpertHost | None = None,
        label: Label | None = None,
        names: Sequence[str] = (),
        grids: Grids | None = None,
    ) -> None:
        self.names = tuple(names)
        self._tensor = tensor
        self._label = label
        self._adapt = adapt
        self._grids = grids
        self.experts = experts or AllHere()
        self.dtype = dtype
        self.device = torch.device(device)
        self.held = dtype if held is None else held
        self.taken_bytes = 0

    @property
    def has_values(self) -> bool:
        return self._tensor is not None

    def read(self, name: str) -> Tensor:
        """One tensor as it is stored, on the CPU, for a family that does not take its tensors one by one."""
        assert self._tensor is not None
        return self._tensor(name)

    def take(self, name: str, *shape: int) -> Tensor:
        """One tensor. Errors: `ModelError` when it is missing or of another shape."""
        return self._take(name, shape, self.dtype)

    def hold(self, name: str, rows: int, columns: int) -> Tensor | QuantisedTable:
        """One matrix that has several uses, for `map_by` and `rows_of`. Errors: as `take`."""
        if self._grids is None:
            return self._take(name, (rows, columns), self.held)
        return self._table(self._grids, [name], [rows], columns, self._grids.kind(name, rows, columns))

    def join(self, names: Sequence[str], rows: Sequence[int], *columns: int) -> Tensor:
        """Several tensors of these `rows` stacked into one, so that one product serves them all."""
        return self._join(names, rows, columns, self.dtype)

    def linear(self, stems: Sequence[str], rows: Sequence[int], columns: int, *, is_biased: bool = False) -> RowMap:
        """The map from `columns` items to `sum(rows)`: the weights called `stems`, one below the other, as one product.

        `is_biased`: each of them has a bias, too.
        """
        bias = self.join([f"{stem}.bias" for stem in stems], rows) if is_biased else None
        names = [f"{stem}.weight" for stem in stems]
        linear = (
            self.map_by(self._join(names, rows, (columns,), self.held), bias)
            if self._grids is None
            else self._on_grids(self._grids, names, rows, columns, bias)
        )
        return linear if self._adapt is None else self._adapt(stems, rows, columns, linear)

    def float_linear(self, name: str, rows: int, columns: int) -> RowMap:
        """The map of one matrix, computed in float32 whatever the model's type is: nobody adapts it."""
        if self._grids is None:
            return Linear(self.take(name, rows, columns).float())
        return self._table(self._grids, [name], [rows], columns, FLOATS).linear(None)

    def native_gate(self, activation: RowMap) -> RowMap | None:
        """A gate to go with native products; None where there are none, or none for this activation."""
        kind = native_kind(activation)
        if kind is None or self._grids is None or self._grids.products is None:
            return None
        library = current_library()
        return None if isinstance(library, str) else native_gate(kind, library)

    def head_linear(self, weight_HIO: Tensor) -> RowMap:
        """The map of each head, from [T, heads, in] to [T, heads, out], of a tensor that was taken."""
        if self._grids is None or self._tensor is None:
            return HeadLinear(weight_HIO)
        return HeadBesideHead([self._floats(self._grids, weight_IO.t()) for weight_IO in weight_HIO])

    def _floats(self, grids: Grids, weight_OI: Tensor) -> QuantisedLinear:
        rows, columns = weight_OI.shape
        return grids.table([_bytes(weight_OI)], FLOATS, rows, columns).linear(None)

    def _on_grids(
        self, grids: Grids, names: Sequence[str], rows: Sequence[int], columns: int, bias: Tensor | None
    ) -> RowMap:
        """A table for each run of matrices of one kind."""
        kinds = [grids.kind(name, count, columns) for name, count in zip(names, rows, strict=True)]
        parts: list[QuantisedLinear] = []
        at = 0
        for kind, run in groupby(range(len(names)), kinds.__getitem__):
            alike = [*run]
            own_rows = [rows[index] for index in alike]
            end = at + sum(own_rows)
            table = self._table(grids, [names[index] for index in alike], own_rows, columns, kind)
            parts.append(table.linear(None if bias is None else bias[at:end]))
            at = end
        return parts[0] if len(parts) == 1 else SideBySide(parts)

    def map_by(self, held: Tensor | QuantisedTable, bias: Tensor | None = None) -> RowMap:
        """The linear map of a held matrix."""
        if isinstance(held, QuantisedTable):
            return held.linear(bias)
        return (Linear if held.dtype == self.dtype else WidenedLinear)(held, bias)

    def rows_of(self, held: Tensor | QuantisedTable, scale: float) -> TokenRows:
        """The embedding whose rows a held matrix has, multiplied by `scale`, which is a number of `dtype`."""
        return held.embedding(scale) if isinstance(held, QuantisedTable) else Embedding(held, self.dtype, scale)

    def _table(
        self, grids: Grids, names: Sequence[str], rows: Sequence[int], columns: int, kind: str
    ) -> QuantisedTable:
        """Matrices of one kind, one below the other."""
        size = grids.table_bytes(kind, sum(rows), columns)
        self.taken_bytes += size
        if self._tensor is None:
            return QuantisedTable(self._labelled(names, rows, columns), kind, sum(rows), columns, size, None)
        return grids.table(self._pieces(grids, names, rows, columns, kind), kind, sum(rows), columns)

    def _pieces(
        self, grids: Grids, names: Sequence[str], rows: Sequence[int], columns: int, kind: str
    ) -> Iterator[Any]:
        for name, count in zip(names, rows, strict=True):
            if kind == FLOATS:
                yield _bytes(self._find(name, (count, columns), self.dtype))
            elif grids.find(name) == Grid(kind, count, columns):
                yield from grids.blocks(name)
            else:
                yield from quantised_rows(self._find(name, (count, columns), torch.float32).float(), kind)

    def _join(self, names: Sequence[str], rows: Sequence[int], columns: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        parts = [self._take(name, (count, *columns), dtype) for name, count in zip(names, rows, strict=True)]
        return self._valueless(names, (sum(rows), *columns), dtype) if self._tensor is None else torch.cat(parts)

    def _take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        found = self._find(name, shape, dtype)
        self.taken_bytes += found.numel() * dtype.itemsize
        return found.to(self.device, dtype)

    def _find(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if self._tensor is None:
            return self._valueless([name], shape, dtype)
        try:
            found = self._tensor(name)
        except KeyError:
            raise ModelError(
                f"tensor {name} is missing; the file does not hold the model that its config names"
            ) from None
        if found.shape != shape:
            raise ModelError(
                f"tensor {name} has shape {list(found.shape)}, the config asks for {list(shape)}; "
                "the file does not hold the model that its config names"
            )
        return found

    def _labelled(self, names: Sequence[str], rows: Sequence[int], columns: int) -> Tensor:
        """What has no values, each of its tensors made known by itself, as if they had been joined."""
        if len(names) > 1:
            for name, count in zip(names, rows, strict=True):
                self._valueless([name], (count, columns), self.dtype)
        return self._valueless(names, (sum(rows), columns), self.dtype)

    def _valueless(self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        # One number seen everywhere. The device called "meta" is for this, but its first sum imports for seconds.
        zeros = torch.zeros((), dtype=dtype).expand(shape)
        return zeros if self._label is None else self._label(names, zeros)


def _bytes(matrix: Tensor) -> Any:
    """Its rows in float32, uint8 [rows, bytes of a row]."""
    return matrix.float().contiguous().numpy().view(np.uint8)
