"""Safetensors files: the JSON header and the tensors of one memory-mapped file.

Folders of them are opened by `safetensors_folder.py`; weights are read from both in the same way.

INVARIANT: an open `SafetensorsFile` has been checked whole: its tensors cover the data without hole or overlap,
and each has the size that its dtype and shape say.

Source: the format section of the safetensors documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from asyncpage.errors import FormatError
from asyncpage.formats.json_text import parse_json_object
from asyncpage.formats.mapped_file import Bytes, MappedFile
from asyncpage.formats.tensor_info import TensorInfo, check_disjoint

# The format allows 100 MB; parsing that costs seconds and a gigabyte, and one file of the largest known models
# needs less than 1 MiB.
MAX_HEADER_BYTES = 4 * 1024 * 1024
MAX_TENSORS = 1 << 16
MAX_DIMENSIONS = 8

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


class SafetensorsFile:
    """One safetensors file, open for reading.

    `tensors` maps names to infos, `metadata` the header's `__metadata__` texts.
    Errors: `ModelError` when it cannot be opened, `FormatError` naming the tensor or section and the reason.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._file = MappedFile(self.path)
        try:
            header, self.data_offset = self._read_header()
            self.metadata = self._read_metadata(header.pop("__metadata__", {}))
            self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
                {name: self._read_info(name, entry) for name, entry in header.items()}
            )
            check_disjoint(str(self.path), self.tensors.values())
            self._check_covered()
        except BaseException:
            self._file.close()
            raise

    def raw(self, name: str) -> Bytes:
        """The tensor's bytes, little-endian and row-major: uint8 [size], read-only, not copied. Errors: `KeyError`."""
        info = self.tensors[name]
        return self._file.view(info.offset, info.size)

    def header(self) -> Bytes:
        """The bytes before the tensor data: uint8 [data_offset]."""
        return self._file.view(0, self.data_offset)

    def data(self) -> Bytes:
        """All tensor data: uint8 [file size - data_offset], read-only, not copied."""
        return self._file.view(self.data_offset, self._file.size - self.data_offset)

    def release(self, name: str) -> None:
        """Drop the tensor's pages from the resident set after it was read; reading it again is allowed."""
        info = self.tensors[name]
        self._file.release(info.offset, info.size)

    def close(self) -> None:
        """Unmap the file."""
        self._file.close()

    def _read_header(self) -> tuple[dict[str, Any], int]:
        """The header's object, and where the tensor data begins."""
        if self._file.size < 8:
            raise self._error("header size", f"the file has {self._file.size} bytes; it may be cut short")
        size = int.from_bytes(self._file.copy(0, 8), "little")
        if size > MAX_HEADER_BYTES:
            raise self._error("header size", f"found {size} bytes, at most {MAX_HEADER_BYTES} are allowed")
        if 8 + size > self._file.size:
            raise self._error("header", f"ends at byte {8 + size}, the file has {self._file.size}; it may be cut short")
        data = self._file.copy(8, size)
        if not data.startswith(b"{"):
            raise self._error("header", f"begins with {data[:1]!r}, not with a brace; is this a safetensors file?")
        # Each tensor is an object with two lists in it.
        return parse_json_object(data, str(self.path), "header", 3 * MAX_TENSORS), 8 + size

    def _read_metadata(self, value: Any) -> Mapping[str, str]:
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise self._error("__metadata__", "is not an object of strings")
        return MappingProxyType(value)

    def _read_info(self, name: str, entry: Any) -> TensorInfo:
        where = f"tensor {name[:200]!r}"
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise self._error(where, "is not an object of dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
            known = ", ".join(DTYPE_BYTES)
            found = repr(dtype[:100]) if isinstance(dtype, str) else "that is not a text"
            raise self._error(where, f"has dtype {found}, which is not supported; supported are {known}")
        if not _are_counts(shape) or len(shape) > MAX_DIMENSIONS:
            raise self._error(where, f"has a shape that is not a list of at most {MAX_DIMENSIONS} counts")
        if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise self._error(where, "has data_offsets that are not a begin and an end")
        begin, end = offsets
        size = prod(shape) * DTYPE_BYTES[dtype]
        if end - begin != size:
            raise self._error(where, f"has {end - begin} bytes, {dtype} of shape {tuple(shape)} needs {size}")
        if self.data_offset + end > self._file.size:
            reason = f"ends at byte {self.data_offset + end}, the file has {self._file.size}; it may be cut short"
            raise self._error(where, reason)
        return TensorInfo(name, dtype, tuple(shape), self.data_offset + begin, size)

    def _check_covered(self) -> None:
        # With no overlap, a sum that fits says there is no hole either; the format forbids bytes that nobody names.
        named = sum(info.size for info in self.tensors.values())
        if named != self._file.size - self.data_offset:
            found = self._file.size - self.data_offset
            raise self._error("tensor data", f"has {found} bytes, the tensors name {named} of them")

    def _error(self, where: str, reason: str) -> FormatError:
        return FormatError(str(self.path), where, reason)


def _are_counts(value: Any) -> bool:
    """Whether this is a list of integers from 0 to the largest that a file can mean."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)
