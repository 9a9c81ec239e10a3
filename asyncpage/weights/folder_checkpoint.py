"""A folder with `config.json` and safetensors as a checkpoint.

`open_checkpoint` makes it for the executor; `QuantisedFolder` takes from it what is not quantised.

INVARIANT: a tensor's bytes are copied once, from the page cache into the tensor that is returned or, where the
type differs, through a staging buffer of a few megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from asyncpage.errors import FormatError, ModelError
from asyncpage.formats.json_text import read_json_object
from asyncpage.formats.mapped_file import Bytes
from asyncpage.formats.safetensors_folder import SafetensorsFolder
from asyncpage.formats.tensor_info import TensorInfo
from asyncpage.weights.fingerprint import fingerprint
from asyncpage.weights.settings import settle
from asyncpage.weights.stored import Grid, Stored

CONFIG_NAME = "config.json"
MAX_CONFIG_BYTES = 1024 * 1024  # real ones have a few thousand
STAGING_BYTES = 4 * 1024 * 1024

_FLOATS: Mapping[str, torch.dtype] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class FolderCheckpoint:
    """See `Checkpoint`. `config_file` is named in errors about the config; `folder` has the tensors as they are stored.

    Errors of the constructor: `ModelError` for what is not run, `FormatError` when malformed.
    """

    stored_as: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self._path = path
        config_path = path / CONFIG_NAME
        self.config_file = str(config_path)
        found = read_json_object(config_path, MAX_CONFIG_BYTES, most_containers=10_000)
        self.config = settle(found, self.config_file)
        self.folder = SafetensorsFolder(path)
        try:
            layers = self.config.get("num_hidden_layers") or 0
            if layers > len(self.folder.tensors):  # before a model is put together that the file could make endless
                reason = f"{layers} layers need more tensors than the {len(self.folder.tensors)} in the folder"
                raise FormatError(self.config_file, "num_hidden_layers", reason)
            if not any(
                name.startswith("lm_head.") for name in self.folder.tensors
            ):  # else the family knows what silence means
                self.config.setdefault("tie_word_embeddings", True)
            files = [file for _, file in sorted(self.folder.files.items())]
            self.fingerprint = fingerprint(config_path.read_bytes(), files)
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.folder.tensors)

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        info = self._info(name)
        stored = _FLOATS.get(info.dtype)
        if stored is None:
            known = ", ".join(_FLOATS)
            raise ModelError(f"{self._path}: tensor {name!r} has dtype {info.dtype}; weights are read from {known}")
        out = torch.empty(info.shape, dtype=dtype)
        flat = out.reshape(-1)
        # uint8 views on both sides: numpy has no bfloat16, and the file need not be aligned to its element.
        source = self.folder.raw(name)
        if stored == dtype:
            flat.view(torch.uint8).numpy()[:] = source
        else:
            staging = torch.empty(STAGING_BYTES // stored.itemsize, dtype=stored)
            for start in range(0, len(flat), len(staging)):
                part = staging[: min(len(staging), len(flat) - start)]
                begin = start * stored.itemsize
                part.view(torch.uint8).numpy()[:] = source[begin : begin + len(part) * stored.itemsize]
                flat[start : start + len(part)].copy_(part)
        self.folder.release(name)
        return out

    def stored(self, name: str) -> Stored:
        info = self._info(name)
        return Stored(info.dtype, info.size)

    def grid(self, name: str) -> Grid | None:
        return None

    def blocks(self, name: str) -> Iterator[Bytes]:
        return iter(())  # nothing has a grid

    def close(self) -> None:
        self.folder.close()

    def _info(self, name: str) -> TensorInfo:
        info = self.folder.tensors.get(name)
        if info is None:
            raise ModelError(f"{self._path}: has no tensor {name!r}")
        return info
