"""What a container's header says of one tensor, and the check that tensors do not share bytes.

Made by the readers, read by whoever loads weights.

INVARIANT: an info that a reader hands out lies inside its file, and its size fits its type and shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from asyncpage.errors import FormatError


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `dtype` in its container's words (`Q4_1`, `BF16`), `shape` row-major, bytes from `offset` on."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    size: int  # bytes


def check_disjoint(file: str, tensors: Iterable[TensorInfo]) -> None:
    """Errors: `FormatError` naming the first two tensors that share a byte."""
    end, owner = 0, ""
    for info in sorted(tensors, key=lambda info: (info.offset, info.size)):
        if info.offset < end:
            raise FormatError(file, f"tensor {info.name!r}", f"its data overlaps that of {owner!r}")
        end, owner = info.offset + info.size, info.name
