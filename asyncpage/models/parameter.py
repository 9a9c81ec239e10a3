"""Takes a model's tensors by name from whatever holds them, checked and on their device, and makes linear maps of them.

Families ask it for everything that they are made of. Errors name the tensor: a missing one, a wrong shape.

INVARIANT: every linear map of a model is made by `linear`, by the names that its tensors have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from asyncpage.errors import ModelError
from asyncpage.models.experts import AllHere, ExpertHost
from asyncpage.models.layers import Linear, RowMap, WidenedLinear

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
    some. `label` is asked of what has no values. `names`: of all tensors that there are.
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
    ) -> None:
        self.names = tuple(names)
        self._tensor = tensor
        self._label = label
        self._adapt = adapt
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

    def hold(self, name: str, *shape: int) -> Tensor:
        """One matrix whose users widen what they read of it. Errors: as `take`."""
        return self._take(name, shape, self.held)

    def join(self, names: Sequence[str], rows: Sequence[int], *columns: int) -> Tensor:
        """Several tensors of these `rows` stacked into one, so that one product serves them all."""
        return self._join(names, rows, columns, self.dtype)

    def linear(self, stems: Sequence[str], rows: Sequence[int], columns: int, *, is_biased: bool = False) -> RowMap:
        """The map from `columns` items to `sum(rows)`: the weights called `stems`, one below the other, as one product.

        `is_biased`: each of them has a bias, too.
        """
        weight = self._join([f"{stem}.weight" for stem in stems], rows, (columns,), self.held)
        linear = self.map_by(weight, self.join([f"{stem}.bias" for stem in stems], rows) if is_biased else None)
        return linear if self._adapt is None else self._adapt(stems, rows, columns, linear)

    def map_by(self, weight: Tensor, bias: Tensor | None = None) -> RowMap:
        """The linear map of a held matrix, for one that has other uses, too."""
        return (Linear if weight.dtype == self.dtype else WidenedLinear)(weight, bias)

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

    def _valueless(self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        # One number seen everywhere. The device called "meta" is for this, but its first sum imports for seconds.
        zeros = torch.zeros((), dtype=dtype).expand(shape)
        return zeros if self._label is None else self._label(names, zeros)
