"""Takes a model's tensors by name from whatever holds them, checked and on their device.

Errors name the tensor: a missing one, a wrong shape.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from asyncpage.errors import ModelError


class Parameters:
    """`tensor(name)` gives a tensor in any float dtype; what is taken is in `dtype` on `device`."""

    def __init__(self, tensor: Callable[[str], Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self._tensor = tensor
        self.dtype = dtype
        self.device = device

    def take(self, name: str, *shape: int) -> Tensor:
        """One tensor. Errors: `ModelError` when it is missing or of another shape."""
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
        return found.to(self.device, self.dtype)

    def join(self, names: tuple[str, ...], rows: tuple[int, ...], *columns: int) -> Tensor:
        """Several tensors of these `rows` stacked into one, so that one product serves them all."""
        return torch.cat([self.take(name, count, *columns) for name, count in zip(names, rows, strict=True)])
