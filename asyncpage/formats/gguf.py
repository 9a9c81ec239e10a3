"""GGUF files, version 2 and 3: metadata and tensors of one memory-mapped file.

The tokenizer and chat template are read from its metadata, the weights from its tensors; it sends to nobody.

INVARIANT: an open `GGUFFile` has been checked whole: every tensor lies inside the file, aligned, of a type that
we read and of the size its shape says, and no two share a byte; opening never decodes what nobody asks for.

Source: the GGUF specification in ggml's `docs/gguf.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from asyncpage.errors import FormatError
from asyncpage.formats.block_type import BLOCK_TYPES, OTHER_TYPE_NAMES, Floats
from asyncpage.formats.gguf_header import HeaderReader
from asyncpage.formats.gguf_metadata import MAX_PAIRS, read_metadata
from asyncpage.formats.mapped_file import Bytes, MappedFile
from asyncpage.formats.tensor_info import TensorInfo, check_disjoint

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_TENSORS = 1 << 15  # the largest known models have some thousand
MAX_DIMENSIONS = 4  # ggml's own
MAX_TENSOR_NAME_BYTES = 64  # the specification's

_TYPES_BY_NUMBER = {kind.number: kind for kind in BLOCK_TYPES}
_TYPES_BY_NAME = {kind.name: kind for kind in BLOCK_TYPES}


class GGUFFile:
    """One GGUF file, open for reading.

    `metadata` maps keys to str, int, float, bool or lists of them; `tensors` maps names to infos whose shapes are
    row-major (out, in) and whose dtypes are ggml's names; `data_offset` is where tensor data begins.
    Errors: `ModelError` when it cannot be opened, `FormatError` naming the tensor or section and the reason.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._file = MappedFile(self.path)
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def raw(self, name: str) -> Bytes:
        """The tensor's bytes as they lie in the file: uint8 [size], read-only, not copied. Errors: `KeyError`."""
        info = self.tensors[name]
        return self._file.view(info.offset, info.size)

    def dequantize(self, name: str, out: Floats | None = None) -> Floats:
        """The whole tensor as a float32 array of its shape: a new one, or `out`, contiguous and of that shape.

        Errors: `KeyError`, `ValueError` for an `out` that does not fit.
        """
        info = self.tensors[name]
        if out is None:
            out = np.empty(info.shape, np.float32)
        elif out.shape != info.shape or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ValueError(f"out must be contiguous float32 of shape {info.shape}")
        _TYPES_BY_NAME[info.dtype].dequantize(self._file.view(info.offset, info.size), out.reshape(-1))
        return out

    def rows(self, name: str, start: int, stop: int) -> Floats:
        """Rows `start` to `stop`, float32 [stop - start, length of the last axis]: all other axes count as one.

        Errors: `KeyError`, `IndexError` for rows that are not there.
        """
        data = self.raw_rows(name, start, stop)
        info = self.tensors[name]
        out = np.empty((stop - start, info.shape[-1]), np.float32)
        _TYPES_BY_NAME[info.dtype].dequantize(data.reshape(-1), out.reshape(-1))
        return out

    def raw_rows(self, name: str, start: int, stop: int) -> Bytes:
        """The same rows as they lie in the file: uint8 [stop - start, bytes of a row], read-only, not copied."""
        info = self.tensors[name]
        rows = prod(info.shape[:-1])
        if not 0 <= start <= stop <= rows:
            raise IndexError(f"rows {start} to {stop} of {name!r}, which has {rows}")
        row_bytes = info.size // rows
        data = self._file.view(info.offset + start * row_bytes, (stop - start) * row_bytes)
        return data.reshape(stop - start, row_bytes)

    def header(self) -> Bytes:
        """The bytes before the tensor data: uint8 [data_offset], clipped to the file."""
        return self._file.view(0, min(self.data_offset, self._file.size))

    def data(self) -> Bytes:
        """The tensor data with its padding: uint8 [file size - data_offset], read-only, not copied."""
        start = min(self.data_offset, self._file.size)
        return self._file.view(start, self._file.size - start)

    def release(self, name: str) -> None:
        """Drop the tensor's pages from the resident set after it was read; reading it again is allowed."""
        info = self.tensors[name]
        self._file.release(info.offset, info.size)

    def close(self) -> None:
        """Unmap the file; metadata that was never asked for can no longer be read."""
        self._file.close()

    def _open(self) -> None:
        reader = HeaderReader(self._file)
        tensor_count, pair_count = self._read_preamble(reader)
        self.metadata = read_metadata(reader, pair_count)
        self.alignment = self._read_alignment(self.metadata)
        infos = [self._read_info(reader) for _ in range(tensor_count)]
        self.data_offset = _align(reader.position, self.alignment)
        tensors: dict[str, TensorInfo] = {}
        for relative in infos:
            info = self._place(relative)
            if info.name in tensors:
                raise self._error(f"tensor {info.name!r}", "is there twice")
            tensors[info.name] = info
        check_disjoint(str(self.path), tensors.values())
        self.tensors = MappingProxyType(tensors)

    def _read_preamble(self, reader: HeaderReader) -> tuple[int, int]:
        """Number of tensors and of metadata pairs, after magic and version."""
        magic = reader.take(4, "magic")
        if magic != MAGIC:
            raise self._error("magic", f"found {magic!r}, a GGUF file begins with {MAGIC!r}")
        self.version = reader.u32("version")
        if self.version not in (2, 3):
            swapped = int.from_bytes(self.version.to_bytes(4, "little"), "big")
            if swapped in (1, 2, 3):
                raise self._error("version", "is a big-endian file; only little-endian ones are read")
            raise self._error("version", f"found {self.version}, versions 2 and 3 are read")
        tensor_count = reader.count("tensor count", least_bytes=32, most=MAX_TENSORS)
        return tensor_count, reader.count("metadata count", least_bytes=13, most=MAX_PAIRS)

    def _read_alignment(self, metadata: Mapping[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or isinstance(alignment, bool):
            raise self._error("general.alignment", f"found {alignment!r}, an integer is needed")
        if alignment < 8 or alignment > MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self._error(
                "general.alignment", f"found {alignment}, a power of two from 8 to {MAX_ALIGNMENT} is needed"
            )
        return alignment

    def _read_info(self, reader: HeaderReader) -> TensorInfo:
        """One entry of the tensor list; its offset still counts from the start of the tensor data."""
        name = reader.string("tensor name", MAX_TENSOR_NAME_BYTES)
        where = f"tensor {name!r}"
        axes = reader.u32(where)
        if not 1 <= axes <= MAX_DIMENSIONS:
            raise self._error(where, f"has {axes} dimensions, 1 to {MAX_DIMENSIONS} are allowed")
        # The file lists the axis that is contiguous first.
        shape = tuple(reader.u64(where) for _ in range(axes))[::-1]
        number = reader.u32(where)
        offset = reader.u64(where)
        kind = _TYPES_BY_NUMBER.get(number)
        if kind is None:
            known = ", ".join(kind.name for kind in BLOCK_TYPES)
            found = OTHER_TYPE_NAMES.get(number, f"number {number}")
            raise self._error(where, f"has type {found}, which is not supported; supported are {known}")
        if 0 in shape:
            raise self._error(where, f"has shape {shape}, an axis of 0")
        if shape[-1] % kind.elements:
            raise self._error(where, f"has rows of {shape[-1]}, {kind.name} needs a multiple of {kind.elements}")
        if offset % self.alignment:
            raise self._error(where, f"begins at offset {offset}, which is not aligned to {self.alignment}")
        return TensorInfo(name, kind.name, shape, offset, prod(shape) // kind.elements * kind.size)

    def _place(self, relative: TensorInfo) -> TensorInfo:
        """The same info counted from the start of the file, which it must lie inside."""
        offset = self.data_offset + relative.offset
        if offset + relative.size > self._file.size:
            reason = (
                f"{relative.dtype} of shape {relative.shape} ends at byte {offset + relative.size}, "
                f"the file has {self._file.size}; it may be cut short"
            )
            raise self._error(f"tensor {relative.name!r}", reason)
        return TensorInfo(relative.name, relative.dtype, relative.shape, offset, relative.size)

    def _error(self, where: str, reason: str) -> FormatError:
        return FormatError(str(self.path), where, reason)


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
