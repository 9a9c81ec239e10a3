"""Collects which tensor of a GGUF file becomes which of a model, each checked against the file as it is named.

The translations of architectures fill it, layer by layer; it sends to nobody.

INVARIANT: when it is finished, every source lies in the file with the shape that the settings call for, and every
tensor of the file is read by some source or was named as not a weight.
"""

from __future__ import annotations

from math import prod

from asyncpage.errors import FormatError
from asyncpage.formats.gguf import GGUFFile
from asyncpage.weights.gguf_source import Piece, Source


class Tensors:
    """Of the GGUF architecture called `architecture`. Errors: `FormatError` naming the tensor, from every method.

    A tensor is checked when it is asked for, so that counts that the file could make endless end at the first one
    that is not there.
    """

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self._file = file
        self._architecture = architecture
        self._sources: dict[str, Source] = {}
        self._read: set[str] = set()

    def has(self, there: str) -> bool:
        return there in self._file.tensors

    def add(self, here: str, there: str, *shape: int, head_rows: int = 0, excess: float = 0.0) -> None:
        """Hugging Face's `here` is the file's `there`, of this shape. See `Source` for the rest."""
        self._check(there, shape)
        rows = shape[0] if len(shape) == 1 else prod(shape[:-1])
        self._sources[here] = Source(shape, (Piece(there, rows),), 1, head_rows, excess)

    def add_rows(
        self, here: str, there: str, stored: tuple[int, ...], start: int, rows: int, head_rows: int = 0
    ) -> None:
        """`here` is `rows` rows of `there`, whose shape is `stored`; all axes but the last count as one."""
        self._check(there, stored)
        shape = (rows,) if len(stored) == 1 else (rows, stored[-1])
        self._sources[here] = Source(shape, (Piece(there, rows, start),), 1, head_rows)

    def add_groups(self, here: str, columns: int, groups: int, *pieces: Piece) -> None:
        """`here`, of so many columns, is made of `groups` groups of rows; see `Source`."""
        for piece in pieces:
            inner = (columns, piece.rows) if piece.is_transposed else (piece.rows, columns)
            self._check(piece.name, (groups, *inner))
        self._sources[here] = Source((groups * sum(piece.rows for piece in pieces), columns), pieces, groups)

    def finish(self, *not_weights: str) -> dict[str, Source]:
        """Hugging Face's name -> source of all there are. Errors: `FormatError` for a tensor that nothing reads."""
        for name in self._file.tensors:
            if name not in self._read and name not in not_weights:
                reason = f"is not part of a {self._architecture} model as the file's settings describe it"
                raise FormatError(str(self._file.path), f"tensor {name!r}", reason)
        return self._sources

    def _check(self, there: str, shape: tuple[int, ...]) -> None:
        info = self._file.tensors.get(there)
        if info is None:
            raise FormatError(str(self._file.path), f"tensor {there!r}", "is missing")
        if info.shape != shape:
            reason = f"has shape {info.shape}, the file's settings call for {shape}"
            raise FormatError(str(self._file.path), f"tensor {there!r}", reason)
        self._read.add(there)
