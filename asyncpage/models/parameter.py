"""Takes a model's tensors by name from whatever holds them, checked and on their device, and makes linear maps of them.

Families ask it for everything that they are made of. Errors name the tensor: a missing one, a wrong shape.

INVARIANT: every linear map of a model is made by `linear`, by the names that its tensors have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import torch
from torch import Tensor

from asyncpage.errors import ModelError
from asyncpage.kernels.quantised import table_bytes
from asyncpage.models.experts import AllHere, ExpertHost
from asyncpage.models.layers import Embedding, Linear, RowMap, TokenRows, WidenedLinear
from asyncpage.models.quantised_linear import Grids, QuantisedTable, SideBySide

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
    dequantised, None where all are.
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
        kind = self._kind(name, rows, columns)
        return (
            self._take(name, (rows, columns), self.held) if kind is None else self._table([name], kind, rows, columns)
        )

    def join(self, names: Sequence[str], rows: Sequence[int], *columns: int) -> Tensor:
        """Several tensors of these `rows` stacked into one, so that one product serves them all."""
        return self._join(names, rows, columns, self.dtype)

    def linear(self, stems: Sequence[str], rows: Sequence[int], columns: int, *, is_biased: bool = False) -> RowMap:
        """The map from `columns` items to `sum(rows)`: the weights called `stems`, one below the other, as one product.

        `is_biased`: each of them has a bias, too.
        """
        bias = self.join([f"{stem}.bias" for stem in stems], rows) if is_biased else None
        names = [f"{stem}.weight" for stem in stems]
        kinds = [self._kind(name, count, columns) for name, count in zip(names, rows, strict=True)]
        parts: list[RowMap] = []
        at = 0
        for kind, run in groupby(range(len(names)), kinds.__getitem__):
            alike = [*run]
            own_names, own_rows = [names[index] for index in alike], [rows[index] for index in alike]
            own_bias = None if bias is None else bias[at : at + sum(own_rows)]
            at += sum(own_rows)
            held: Tensor | QuantisedTable
            if kind is None:
                held = self._join(own_names, own_rows, (columns,), self.held)
            else:
                held = self._table(own_names, kind, sum(own_rows), columns)
            parts.append(self.map_by(held, own_bias))
        linear = parts[0] if len(parts) == 1 else SideBySide(parts)
        return linear if self._adapt is None else self._adapt(stems, rows, columns, linear)

    def map_by(self, held: Tensor | QuantisedTable, bias: Tensor | None = None) -> RowMap:
        """The linear map of a held matrix."""
        if isinstance(held, QuantisedTable):
            return held.linear(bias)
        return (Linear if held.dtype == self.dtype else WidenedLinear)(held, bias)

    def rows_of(self, held: Tensor | QuantisedTable, scale: float) -> TokenRows:
        """The embedding whose rows a held matrix has, multiplied by `scale`, which is a number of `dtype`."""
        return held.embedding(scale) if isinstance(held, QuantisedTable) else Embedding(held, self.dtype, scale)

    def _kind(self, name: str, rows: int, columns: int) -> str | None:
        """The grid that a matrix is held on, None for none. One of another shape is none, and refused as it is read."""
        grid = None if self._grids is None else self._grids.find(name)
        return grid.kind if grid is not None and (grid.rows, grid.columns) == (rows, columns) else None

    def _table(self, names: Sequence[str], kind: str, rows: int, columns: int) -> QuantisedTable:
        assert self._grids is not None
        self.taken_bytes += table_bytes(kind, rows, columns)
        if self._tensor is not None:
            return self._grids.table(names, kind, rows, columns)
        return QuantisedTable(self._labelled(names, rows, columns), kind, rows, columns, None)

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

    def _labelled(self, names: Sequence[str], rows: int, columns: int) -> Tensor:
        """What has no values, each of its tensors made known by itself, as if they had been joined."""
        if len(names) > 1:
            for name in names:
                grid = None if self._grids is None else self._grids.find(name)
                if grid is not None:
                    self._valueless([name], (grid.rows, grid.columns), self.dtype)
        return self._valueless(names, (rows, columns), self.dtype)

    def _valueless(self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        # One number seen everywhere. The device called "meta" is for this, but its first sum imports for seconds.
        zeros = torch.zeros((), dtype=dtype).expand(shape)
        return zeros if self._label is None else self._label(names, zeros)
