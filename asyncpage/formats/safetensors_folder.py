"""A folder's safetensors: one file, or several behind `model.safetensors.index.json`, as one set of tensors.

Weights are read from it like from a single `SafetensorsFile`.

INVARIANT: only files that lie directly in the folder are opened, and every tensor the index names is in the file
it names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from asyncpage.errors import FormatError, ModelError
from asyncpage.formats.json_text import read_json_object
from asyncpage.formats.mapped_file import Bytes
from asyncpage.formats.safetensors import SafetensorsFile
from asyncpage.formats.tensor_info import TensorInfo

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAX_INDEX_BYTES = 16 * 1024 * 1024  # the largest known, for 91,000 tensors, has 9 MB
MAX_FILES = 2048

_SHARD_NAME = re.compile(r"[A-Za-z0-9_.+ -]{1,200}\.safetensors")


class SafetensorsFolder:
    """All tensors of a model folder; `files` are the open files by name, `metadata` those of the first.

    Errors: `ModelError` when the folder has no safetensors, `FormatError` when its index or a file is malformed.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.files: dict[str, SafetensorsFile] = {}
        try:
            if (self.path / SINGLE_NAME).exists() or not (self.path / INDEX_NAME).exists():
                name = self._single_name()
                only = self.files[name] = SafetensorsFile(self.path / name)
                self._owners = dict.fromkeys(only.tensors, only)
            else:
                self._owners = self._open_sharded()
        except BaseException:
            self.close()
            raise
        self.metadata = next((file.metadata for file in self.files.values()), {})
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {name: owner.tensors[name] for name, owner in self._owners.items()}
        )

    def raw(self, name: str) -> Bytes:
        """The tensor's bytes: uint8 [size], read-only, not copied. Errors: `KeyError`."""
        return self._owners[name].raw(name)

    def release(self, name: str) -> None:
        """Drop the tensor's pages from the resident set after it was read."""
        self._owners[name].release(name)

    def close(self) -> None:
        """Unmap every file."""
        for file in self.files.values():
            file.close()

    def _single_name(self) -> str:
        if (self.path / SINGLE_NAME).exists():
            return SINGLE_NAME
        names = sorted(found.name for found in self.path.glob("*.safetensors"))
        if len(names) == 1:
            return names[0]
        if names:
            raise ModelError(f"{self.path}: has {len(names)} safetensors files and no {INDEX_NAME} to join them")
        if any(self.path.glob("*.bin")) or any(self.path.glob("*.pth")):
            raise ModelError(
                f"{self.path}: has only pickled weights, which are never read; convert them to safetensors"
            )
        raise ModelError(f"{self.path}: has neither {SINGLE_NAME} nor {INDEX_NAME}")

    def _open_sharded(self) -> dict[str, SafetensorsFile]:
        """Owner of each tensor, after opening every file of the index."""
        index = self.path / INDEX_NAME
        weight_map = read_json_object(index, MAX_INDEX_BYTES, most_containers=64).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise FormatError(str(index), "weight_map", "is not an object of file names by tensor")
        names = sorted({_shard_name(index, tensor, name) for tensor, name in weight_map.items()})
        if len(names) > MAX_FILES:
            raise FormatError(str(index), "weight_map", f"names {len(names)} files, at most {MAX_FILES} are allowed")
        for name in names:
            self.files[name] = SafetensorsFile(self.path / name)
        for tensor, name in weight_map.items():
            if tensor not in self.files[name].tensors:
                raise FormatError(str(index), f"tensor {tensor[:200]!r}", f"is not in {name}, where the index puts it")
        return {tensor: self.files[name] for tensor, name in weight_map.items()}


def _shard_name(index: Path, tensor: str, name: Any) -> str:
    # An index comes with a download: it must not be able to point at anything else on this machine.
    if isinstance(name, str) and _SHARD_NAME.fullmatch(name):
        return name
    found = repr(name[:200]) if isinstance(name, str) else f"a {type(name).__name__}"
    reason = f"is in {found}, which is not the plain name of a safetensors file"
    raise FormatError(str(index), f"tensor {tensor[:200]!r}", reason)
