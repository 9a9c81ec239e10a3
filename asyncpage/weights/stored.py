"""How a checkpoint stores one tensor of a model, told without reading it.

Every kind of checkpoint answers with it; a list of a model's operators shows it beside what is held.

INVARIANT: `size` counts bytes of the file that are this tensor's and no other's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stored:
    """`kind` in the container's words (`Q4_1`, `BF16`, `GPTQ in 4 bits`). `size`: bytes, scales included."""

    kind: str
    size: int


@dataclass(frozen=True, slots=True)
class Grid:
    """A matrix whose rows a file holds in blocks of one `kind`, in GGUF's words, that could be used as they are."""

    kind: str
    rows: int
    columns: int
