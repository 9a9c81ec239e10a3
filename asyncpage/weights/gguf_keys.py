"""Typed reading of one architecture's settings from GGUF metadata.

The translations of architectures ask it for counts and numbers; it sends to nobody.

INVARIANT: what it returns is of the type asked for and in range; what is not is a `FormatError` naming the key.
"""

from __future__ import annotations

import math
from typing import Any

from asyncpage.errors import FormatError
from asyncpage.formats.gguf import GGUFFile
from asyncpage.weights.settings import MAX_COUNT


class Keys:
    """The keys of `file` that begin with `architecture` and a dot; methods take what comes after it."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self._file = file
        self._prefix = architecture

    def get(self, name: str, default: Any = None) -> Any:
        return self._file.metadata.get(f"{self._prefix}.{name}", default)

    def count(self, name: str, *, default: int | None = None) -> int:
        """An integer from 1 to `MAX_COUNT`; a list with one value for each layer counts when they are all equal."""
        value = self.get(name, default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, list):
            raise self.error(name, "differs from layer to layer, which is not supported")
        if value is None:
            raise self.error(name, "is missing")
        if type(value) is not int or not 1 <= value <= MAX_COUNT:
            raise self.error(name, f"found {str(value)[:100]}, an integer from 1 to {MAX_COUNT} is needed")
        return value

    def number(self, name: str, *, default: float | None = None) -> float:
        """A positive finite number."""
        value = self.get(name, default)
        if value is None:
            raise self.error(name, "is missing")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value <= 0:
            raise self.error(name, f"found {str(value)[:100]}, a positive number is needed")
        return float(value)

    def error(self, name: str, reason: str) -> FormatError:
        return FormatError(str(self._file.path), f"{self._prefix}.{name}", reason)
