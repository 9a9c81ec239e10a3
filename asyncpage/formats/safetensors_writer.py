"""Writes a safetensors file: the format that `safetensors` reads.

INVARIANT: under its final name the file is whole, because it gets that name by one rename.

Source: the format section of the safetensors documentation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Stored = tuple[str, tuple[int, ...], bytes]
"""A tensor: its dtype in the format's words, its shape, and its bytes, little-endian and row-major."""


def write_safetensors(path: Path, tensors: Mapping[str, Stored]) -> None:
    """Write `tensors` to `path`. Errors: `OSError`."""
    header: dict[str, Any] = {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that tensor data begins where any of their types may
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, data in tensors.values():
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
