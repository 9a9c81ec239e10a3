"""Memory for the tables of a model, in pages as large as the system gives them.

`Grids` takes each of its tables from one. A product with few rows reads its whole table from memory, and with pages of
4 KB it waits for their translations, too: one to eight rows took 4 to 10 % longer.

INVARIANT: what is taken is zeros, begins at a line of the cache, and lives as long as somebody has it.
"""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes, a line of the cache: a vector seldom lies across two
_HUGE_PAGE = 2 << 20
_CHUNK = 64 << 20  # of address space; what is never taken is never memory


class TableMemory:
    """Hands out pieces of mappings, one behind the other."""

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """`size` bytes, uint8."""
        taken = -(-size // _ALIGNMENT) * _ALIGNMENT
        if taken > len(self._rest):
            self._rest = _map(max(_CHUNK, -(-taken // _HUGE_PAGE) * _HUGE_PAGE))
        piece, self._rest = self._rest[:size], self._rest[taken:]
        return piece


def _map(size: int) -> Tensor:
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapping, dtype=torch.uint8)
