"""What a method of quantisation is to a folder: it finds the weights that are stored its way, and reads them.

`gptq`, `awq` and `fp8` are methods; `QuantisedFolder` chooses one by the config and asks it.

INVARIANT: what decides whether a weight is quantised is the tensors that are there, never a list of names in the
config: such lists (`modules_to_not_convert`, `ignored_layers`, `ignore`) say what the writer left alone, and the files
show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from asyncpage.errors import FormatError
from asyncpage.weights.stored_tensors import StoredTensors

CHUNK_ITEMS = 1 << 20  # dequantised at a time: a few buffers of 4 MB each, whatever the tensor's size


class QuantisedWeight(Protocol):
    """One matrix as several stored tensors, whose types and shapes have been found to fit.

    `parts`: the stored tensors' names. They have no name of their own in the model.
    """

    @property
    def parts(self) -> tuple[str, ...]: ...

    def read(self, stored: StoredTensors, dtype: torch.dtype) -> torch.Tensor:
        """The matrix [out, in], computed in float32 and rounded once to `dtype`. Errors: `FormatError`."""
        ...


class Quantisation(Protocol):
    """A method with its settings. `label`: how it stores weights, for people."""

    @property
    def label(self) -> str: ...

    def find(self, stored: StoredTensors) -> Mapping[str, QuantisedWeight]:
        """By the name that the model knows (`X.weight`). Errors: `FormatError` for parts that do not fit."""
        ...


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a `quantization_config`, or of an object `where` inside of it, read one by one."""

    values: Mapping[str, Any]
    file: str
    where: str = "quantization_config"

    def whole(self, name: str, allowed: Iterable[int] | None = None) -> int:
        """A whole number, one of `allowed` if that is given. Errors: `FormatError` naming the field."""
        value = self.values.get(name)
        known = None if allowed is None else tuple(allowed)
        if type(value) is not int or (known is not None and value not in known):
            wanted = "a whole number" if known is None else " or ".join(map(str, known))
            raise self.error(name, f"found {_shown(value)}, {wanted} is needed")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false; null and absent are `default`. Errors: `FormatError` naming the field."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, f"found {_shown(value)}, true or false is needed")
        return default if value is None else value

    def group_size(self, name: str = "group_size") -> int:
        """Items of an input row that share a scale; -1 for all of them. Errors: `FormatError` naming the field."""
        size = self.whole(name)
        if size != -1 and not 1 <= size <= 1 << 20:
            raise self.error(name, f"found {size}, a positive number or -1 is needed")
        return size

    def block(self, name: str) -> tuple[int, int] | None:
        """Rows and columns of a block; None for null and absent. Errors: `FormatError` naming the field."""
        value = self.values.get(name)
        if value is None:
            return None
        if (
            not isinstance(value, list)
            or len(value) != 2
            or not all(type(item) is int and 1 <= item <= 1 << 20 for item in value)
        ):
            raise self.error(name, f"found {_shown(value)}, two positive numbers are needed")
        return value[0], value[1]

    def refuse_unless(self, **neutral: tuple[Any, ...]) -> None:
        """Errors: `FormatError` for a field whose value is none of its `neutral` ones, nor null; texts in any case."""
        for name, known in neutral.items():
            value = self.values.get(name)
            if isinstance(value, str):
                value = value.lower()
            if value is not None and not any(type(value) is type(item) and value == item for item in known):
                wanted = " or ".join(repr(item) for item in known) or "null"
                raise self.error(name, f"{_shown(self.values[name])} is not supported; {wanted} is")

    def error(self, name: str, reason: str) -> FormatError:
        """A field that cannot be obeyed."""
        return FormatError(self.file, f"{self.where}.{name}", reason)


def _shown(value: Any) -> str:
    return repr(value)[:100]
