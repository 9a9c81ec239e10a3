"""The key-value pairs of a GGUF file, arrays decoded when they are first asked for.

`gguf.py` makes it; the tokenizer, the chat template and the weights' settings are read from it.

INVARIANT: every value's extent and every string's length were checked when the file was opened; only the UTF-8
of strings inside arrays is left to the first access, because a process that wants no vocabulary should not pay
for one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncpage.formats.gguf_header import HeaderReader

MAX_PAIRS = 1 << 16
MAX_KEY_BYTES = (1 << 16) - 1  # the specification's
MAX_STRING_BYTES = 16 * 1024 * 1024  # chat templates, the longest strings known, have some ten thousand
MAX_DEPTH = 4  # of arrays in arrays; the format's own files use 1
MAX_STRINGS = 1 << 21  # in all arrays; each costs a turn of a loop, and the largest vocabularies have a third
MAX_INNER_ARRAYS = 1 << 16  # each costs a call, so a header full of empty ones would take many seconds

_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"), 1: np.dtype("<i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"), 4: np.dtype("<u4"),
    5: np.dtype("<i4"), 6: np.dtype("<f4"), 7: np.dtype("?"), 10: np.dtype("<u8"), 11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}  # fmt: skip
_LEAST_BYTES = {_STRING: 8, _ARRAY: 12} | {number: dtype.itemsize for number, dtype in _NUMBERS.items()}
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class _Array:
    """An array that was stepped over: `count` values of type `kind` from byte `start` on."""

    kind: int
    count: int
    start: int


class Metadata(Mapping[str, Any]):
    """str, int, float, bool, or a list of them, by key, in the order of the file.

    Errors: `FormatError` from the first access to an array of strings that are not UTF-8.
    """

    def __init__(self, reader: HeaderReader, entries: dict[str, Any]) -> None:
        self._reader = reader
        self._entries = entries

    def __getitem__(self, key: str) -> Any:
        value = self._entries[key]
        if isinstance(value, _Array):
            value = self._entries[key] = _decode(self._reader, value, key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries  # without decoding, which Mapping's own would do


def read_metadata(reader: HeaderReader, pair_count: int) -> Metadata:
    """Step over `pair_count` pairs at the cursor. Errors: `FormatError` naming the key at fault."""
    entries: dict[str, Any] = {}
    walk = _Walk(reader)
    for index in range(pair_count):
        key = reader.string(f"metadata key {index}", MAX_KEY_BYTES)
        if not key:
            raise reader.error(f"metadata key {index}", "is empty")
        if key in entries:
            raise reader.error(f"metadata {key!r}", "is there twice")
        entries[key] = walk.value(f"metadata {key!r}")
    return Metadata(reader, entries)


class _Walk:
    """Moves the cursor over values, remembering how many strings and inner arrays the whole header had."""

    def __init__(self, reader: HeaderReader) -> None:
        self.reader = reader
        self.array_strings = 0
        self.inner_arrays = 0

    def value(self, where: str) -> Any:
        kind = self.reader.u32(where)
        if kind == _STRING:
            return self.reader.string(where, MAX_STRING_BYTES)
        if kind == _ARRAY:
            return self.array(where, depth=1)
        dtype = _NUMBERS.get(kind)
        if dtype is None:
            raise self.reader.error(where, f"has a value of unknown type {kind}")
        data = self.reader.take(dtype.itemsize, where)
        if kind == _BOOL and data not in (b"\0", b"\1"):
            raise self.reader.error(where, f"is a boolean of byte {data[0]}, 0 and 1 are allowed")
        return np.frombuffer(data, dtype)[0].item()

    def array(self, where: str, depth: int) -> _Array:
        if depth > MAX_DEPTH:
            raise self.reader.error(where, f"has arrays nested deeper than {MAX_DEPTH}")
        kind = self.reader.u32(where)
        least = _LEAST_BYTES.get(kind)
        if least is None:
            raise self.reader.error(where, f"is an array of unknown type {kind}")
        count = self.reader.count(where, least)
        start = self.reader.position
        if kind == _STRING:
            self.array_strings += count
            if self.array_strings > MAX_STRINGS:
                raise self.reader.error(where, f"brings the strings in arrays to more than {MAX_STRINGS}")
            self.strings(count, where)
        elif kind == _ARRAY:
            self.inner_arrays += count
            if self.inner_arrays > MAX_INNER_ARRAYS:
                raise self.reader.error(where, f"brings the inner arrays to more than {MAX_INNER_ARRAYS}")
            for _ in range(count):
                self.array(where, depth + 1)
        else:
            self.reader.skip(count * least, where)
            if kind == _BOOL and count and self.reader.file.view(start, count).max() > 1:
                raise self.reader.error(where, "has a boolean whose byte is neither 0 nor 1")
        return _Array(kind, count, start)

    def strings(self, count: int, where: str) -> None:
        # The one loop a vocabulary pays for at every open: no calls but the length's.
        data, end, length = self.reader.file.map, self.reader.end, _LENGTH.unpack_from
        position = self.reader.position
        for _ in range(count):
            if position + 8 > end:
                raise self.reader.overrun(where)
            position += 8 + length(data, position)[0]
        if position > end:
            raise self.reader.overrun(where)
        self.reader.position = position


def _decode(reader: HeaderReader, array: _Array, key: str) -> list[Any]:
    values, _ = _decode_at(reader, array, f"metadata {key!r}")
    return values


def _decode_at(reader: HeaderReader, array: _Array, where: str) -> tuple[list[Any], int]:
    """The array's values, and where the bytes after it begin. Extents were checked by the walk."""
    data, position = reader.file.map, array.start
    values: list[Any] = []
    if array.kind == _STRING:
        for _ in range(array.count):
            start = position + 8
            position = start + _LENGTH.unpack_from(data, position)[0]
            values.append(reader.text(data[start:position], where))
    elif array.kind == _ARRAY:
        for _ in range(array.count):
            kind, count = struct.unpack_from("<IQ", data, position)
            inner, position = _decode_at(reader, _Array(kind, count, position + 12), where)
            values.append(inner)
    else:
        dtype = _NUMBERS[array.kind]
        position += array.count * dtype.itemsize
        values = np.frombuffer(data[array.start : position], dtype).tolist()
    return values, position
