"""Where one tensor of a model lies in a GGUF file, and the way back from how it is stored there.

The translations of architectures make them through `gguf_tensors.py`; `gguf_checkpoint.py` reads by them.

INVARIANT: what is read has Hugging Face's shape and order of rows, and beside it only a few megabytes are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from asyncpage.formats.gguf import GGUFFile
from asyncpage.formats.mapped_file import Bytes

# Float32 values dequantised before they are converted: 4 MiB, the most that a tensor needs beside itself.
CHUNK_VALUES = 1 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """`rows` rows of a group of the result: of tensor `name` in the file, from its row `start` on.

    `is_transposed`: each group has its columns as rows in the file.
    """

    name: str
    rows: int
    start: int = 0
    is_transposed: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of `shape`: `groups` groups of rows, each of them made of a group of every piece, in order.

    `head_rows`: rows of a head whose rotary pairs are side by side in the file, where Hugging Face has the first
    items of all pairs before the second ones; 0 where there are none. `excess`: what was added to every value.
    """

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    groups: int = 1
    head_rows: int = 0
    excess: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether the rows are as they are in the file, one after the other."""
        return len(self.pieces) == 1 and not (self.pieces[0].is_transposed or self.head_rows or self.excess)


def read(file: GGUFFile, source: Source, dtype: torch.dtype) -> torch.Tensor:
    """The tensor, new and on the CPU; the pages that it was read from are given back."""
    out = torch.empty(source.shape, dtype=dtype)
    first = source.pieces[0]
    if dtype == torch.float32 and source.is_plain and file.tensors[first.name].shape == source.shape:
        file.dequantize(first.name, out=out.numpy())
    elif out.ndim == 1:
        out.copy_(torch.cat([_restored(values, source) for values in _vectors(file, source)]))
    else:
        _fill(file, source, out.view(source.groups, -1, source.shape[-1]))
    for piece in source.pieces:
        file.release(piece.name)
    return out


def kind_of(file: GGUFFile, source: Source) -> str | None:
    """The type of the blocks that `blocks` gives, None where a tensor is no matrix of whole rows of one type."""
    kinds = {file.tensors[piece.name].dtype for piece in source.pieces}
    is_whole = len(source.shape) == 2 and not source.excess and not any(piece.is_transposed for piece in source.pieces)
    return kinds.pop() if is_whole and len(kinds) == 1 else None


def blocks(file: GGUFFile, source: Source) -> Iterator[Bytes]:
    """The rows of a tensor that has a `kind_of`, as the file has their blocks: uint8 [rows, bytes of a row], some at a
    time; each is valid until the next one is asked for, and pages are given back at the end.
    """
    head_rows = source.head_rows or 1
    step = max(1, CHUNK_VALUES // (head_rows * source.shape[-1])) * head_rows
    for group in range(source.groups):
        for piece in source.pieces:
            first = piece.start + group * piece.rows
            for start in range(0, piece.rows, step):
                rows = file.raw_rows(piece.name, first + start, first + min(piece.rows, start + step))
                if source.head_rows:
                    pairs = rows.reshape(-1, source.head_rows // 2, 2, rows.shape[1])
                    rows = pairs.transpose(0, 2, 1, 3).reshape(rows.shape)
                yield rows
    for piece in source.pieces:
        file.release(piece.name)


def _vectors(file: GGUFFile, source: Source) -> Iterator[torch.Tensor]:
    """Each piece of a tensor with one axis, as a column: its values are the rows of what has biases."""
    for piece in source.pieces:
        yield torch.from_numpy(file.dequantize(piece.name)[piece.start : piece.start + piece.rows])


def _fill(file: GGUFFile, source: Source, out: torch.Tensor) -> None:
    """Write `out`, [groups, rows, columns], a few megabytes at a time."""
    groups, _, columns = out.shape
    head_rows = source.head_rows or 1
    step = max(1, CHUNK_VALUES // (head_rows * columns)) * head_rows
    at = 0
    for piece in source.pieces:
        for group in range(groups):
            target = out[group, at : at + piece.rows]
            if piece.is_transposed:  # its columns are the file's rows, and few: it is one head
                first = piece.start + group * columns
                target.copy_(torch.from_numpy(file.rows(piece.name, first, first + columns)).T)
                continue
            first = piece.start + group * piece.rows
            for start in range(0, piece.rows, step):
                stop = min(piece.rows, start + step)
                values = file.rows(piece.name, first + start, first + stop)
                target[start:stop].copy_(_restored(torch.from_numpy(values), source))
                del values  # before the next ones are made
        at += piece.rows


def _restored(values: torch.Tensor, source: Source) -> torch.Tensor:
    """Float32 rows, whole heads where there are any, as Hugging Face has them."""
    if source.excess:
        values = values - source.excess
    if source.head_rows:
        pairs = values.reshape(-1, source.head_rows // 2, 2, *values.shape[1:])
        values = pairs.transpose(1, 2).reshape(values.shape)
    return values
