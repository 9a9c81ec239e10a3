"""Writes a GGUF file, version 3, one tensor after another, so that no more than one of them is in memory.

INVARIANT: under its final name the file is whole, because it gets that name by one rename.

Source: the GGUF specification in ggml's `docs/gguf.md`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncpage.formats.block_type import BLOCK_TYPES

_ALIGNMENT = 32
_TYPES = {kind.name: kind for kind in BLOCK_TYPES}
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


@dataclass(frozen=True, slots=True)
class Outline:
    """A tensor to be written. `dtype` as ggml calls it; `shape` row-major; `blocks()` gives its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: Callable[[], bytes]

    @property
    def size(self) -> int:
        kind = _TYPES[self.dtype]
        count = 1
        for length in self.shape:
            count *= length
        return count // kind.elements * kind.size


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Sequence[Outline], told: Callable[[int, int], None]
) -> None:
    """`metadata`: str, bool, int from 0 on, float, or lists of them, which may hold negative ints.

    `told(done, total)`: how far it is, in bytes of tensors. Errors: `OSError`.
    """
    header = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        header += _text(key) + _value(value)
    at = 0
    for one in tensors:
        header += _text(one.name) + struct.pack("<I", len(one.shape))
        header += struct.pack(f"<{len(one.shape)}Q", *reversed(one.shape))
        header += struct.pack("<IQ", _TYPES[one.dtype].number, at)
        at += one.size + -one.size % _ALIGNMENT
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.write(header + bytes(-len(header) % _ALIGNMENT))
        done = 0
        for one in tensors:
            data = one.blocks()
            assert len(data) == one.size, "a tensor has the bytes that its shape says"
            file.write(data + bytes(-len(data) % _ALIGNMENT))
            done += len(data) + -len(data) % _ALIGNMENT
            told(done, at)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, list):
        kind = _kind(value[0]) if value else _STRING
        if kind == _U32:
            kind = _I32  # as token types are, and as merges' numbers may be
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(_item(kind, item) for item in value)
    kind = _kind(value)
    return struct.pack("<I", kind) + _item(kind, value)


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return _BOOL
    return {int: _U32, float: _F32, str: _STRING}[type(value)]


def _item(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _text(value)
    return struct.pack({_U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<?"}[kind], value)
