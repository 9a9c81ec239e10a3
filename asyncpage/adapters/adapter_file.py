"""An adapter's folder, `adapter_config.json` and `adapter_model.safetensors`: checked whole, read from end to end.

The engine reads it when an adapter is loaded, to check every number and to learn its identity; the executor reads it
again for its tensors, and finds out whether it is still the same.

INVARIANT: what is read was checked against the model's own linear maps; the identity is a digest of every byte of both
files, made of the very bytes that were read. Nothing is mapped: a file that is cut short meanwhile is an error.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from asyncpage.adapters.settings import AdapterSettings
from asyncpage.errors import FormatError, ModelError
from asyncpage.formats.json_text import parse_json_object
from asyncpage.formats.mapped_file import Bytes
from asyncpage.formats.safetensors import SafetensorsFile
from asyncpage.formats.tensor_info import TensorInfo
from asyncpage.messages import AdaptableLinear

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
MAX_CONFIG_BYTES = 4 << 20  # patterns may name every linear map
MOST_CONTAINERS = 10_000

_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
_TAG = b"asyncpage/lora/1"
_DTYPES = ("F32", "F16", "BF16")

# What names of tensors say that are no A and no B, in the order to look.
_OTHERS = (
    ("lora_magnitude_vector", "belongs to DoRA, which scales the whole weight; that is not supported"),
    ("lora_embedding_", "changes an embedding, which is not supported"),
    ("modules_to_save", "belongs to a module that was trained whole, which is not supported"),
    (".bias", "is a bias, which is not supported"),
)


@dataclass(frozen=True, slots=True)
class LowRank:
    """The change of one linear map: its weight plus `scale` times B [rows, rank] by A [rank, columns].

    `a` and `b` name the tensors.
    """

    linear: AdaptableLinear
    rank: int
    scale: float
    a: str
    b: str


class AdapterFile:
    """One adapter, open. `changes`: of every linear map that it changes. Close it.

    `linears`: the model's, by name; None where they are not known yet, and names and sizes are not checked then.
    Errors: `ModelError` when a file is missing, `FormatError` naming the file, the field or tensor, and the reason.
    """

    def __init__(self, folder: Path, linears: Mapping[str, AdaptableLinear] | None, max_rank: int) -> None:
        self.identity = ""
        config, weights = folder / CONFIG_NAME, folder / WEIGHTS_NAME
        if not folder.is_dir():
            raise ModelError(f"{folder}: no such folder; give the one that holds {CONFIG_NAME} and {WEIGHTS_NAME}")
        if not weights.exists() and (folder / "adapter_model.bin").exists():
            raise ModelError(f"{folder}: has only pickled weights, which are never read; save it as safetensors")
        self._config = _read_small(config)
        self._max_rank = max_rank
        self.settings = AdapterSettings.parse(
            parse_json_object(self._config, str(config), "file", MOST_CONTAINERS), str(config)
        )
        header = SafetensorsFile(weights)
        try:
            self._file, self._header = str(weights), header.header().tobytes()
            self.tensors: Mapping[str, TensorInfo] = header.tensors
        finally:
            header.close()
        self.changes: tuple[LowRank, ...] = tuple(self._pairs(linears))
        self._data: BinaryIO = weights.open("rb")

    def close(self) -> None:
        self._data.close()

    def read(self) -> Iterator[tuple[TensorInfo, Bytes]]:
        """Every tensor with its bytes, in the file's order; `identity` is known behind the last.

        Errors: `FormatError` when the file has changed since it was opened, or a number is not finite.
        """
        digest = hashlib.sha256(_TAG)
        for part in (self._config, self._header):
            digest.update(len(part).to_bytes(8, "little"))
        digest.update(self._config)
        self._data.seek(0)
        if self._take(len(self._header)) != self._header:
            raise FormatError(self._file, "header", "has changed while it was read; load the adapter again")
        digest.update(self._header)
        for info in sorted(self.tensors.values(), key=lambda info: (info.offset, info.size)):
            data = self._take(info.size)
            digest.update(data)
            values = np.frombuffer(data, dtype=np.uint8)
            if not _are_finite(info, values):
                raise FormatError(self._file, f"tensor {info.name!r}", "holds a number that is not finite")
            yield info, values
        self.identity = digest.hexdigest()

    def _take(self, size: int) -> bytes:
        data = self._data.read(size)
        if len(data) != size:
            raise FormatError(self._file, "file", "was cut short while it was read; load the adapter again")
        return data

    def _pairs(self, linears: Mapping[str, AdaptableLinear] | None) -> Iterator[LowRank]:
        """Every A with its B, each checked; and none is missing."""
        modules = dict.fromkeys(self._module_of(name) for name in self.tensors)
        if not modules:
            raise FormatError(self._file, "header", "holds no tensor, so the adapter changes nothing")
        for module in modules:
            if self.settings.targets_module(module) is False:
                raise self._error(module, "is changed, but adapter_config.json does not target it")
            if linears is None:
                continue
            linear = linears.get(module)
            if linear is None:
                raise self._error(
                    module, f"is no linear map of this model that adapters may change; {_described(linears)} are"
                )
            yield self._pair(linear)
        for name in linears or ():
            if self.settings.targets_module(name) and name not in modules:
                raise self._error(name, "is targeted by adapter_config.json, and there is no tensor for it")

    def _pair(self, linear: AdaptableLinear) -> LowRank:
        module = linear.name
        a, b = f"{_PREFIX}{module}{_A}", f"{_PREFIX}{module}{_B}"
        for name in (a, b):
            if name not in self.tensors:
                raise self._error(module, f"has no tensor {name}")
        rank = self.settings.rank_of(module)
        if rank > self._max_rank:
            raise self._error(module, f"has rank {rank}, and --max-lora-rank is {self._max_rank}; raise it")
        for name, shape in ((a, (rank, linear.columns)), (b, (linear.rows, rank))):
            info = self.tensors[name]
            if info.shape != shape:
                reason = f"has shape {list(info.shape)}, rank and model ask for {list(shape)}"
                raise FormatError(self._file, f"tensor {name!r}", reason)
            if info.dtype not in _DTYPES:
                reason = f"has dtype {info.dtype}; adapters are read from {', '.join(_DTYPES)}"
                raise FormatError(self._file, f"tensor {name!r}", reason)
        return LowRank(linear, rank, self.settings.scale_of(module), a, b)

    def _module_of(self, name: str) -> str:
        for mark, reason in _OTHERS:
            if mark in name:
                raise FormatError(self._file, f"tensor {name[:200]!r}", reason)
        for end in (_A, _B):
            if name.startswith(_PREFIX) and name.endswith(end):
                return name[len(_PREFIX) : -len(end)]
        reason = f"is not called {_PREFIX}MODULE{_A} or {_B}, as PEFT saves what it has trained"
        raise FormatError(self._file, f"tensor {name[:200]!r}", reason)

    def _error(self, module: str, reason: str) -> FormatError:
        return FormatError(self._file, f"module {module[:200]!r}", reason)


def _read_small(path: Path) -> bytes:
    """The settings' bytes. Errors: `ModelError`, `FormatError`."""
    try:
        # Without O_NONBLOCK a FIFO would hang the open for ever.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ModelError(f"{path}: not a regular file")
            data = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; give the folder of an adapter that PEFT has saved") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_CONFIG_BYTES:
        raise FormatError(str(path), "file", f"has more than {MAX_CONFIG_BYTES} bytes")
    return data


def _are_finite(info: TensorInfo, values: Bytes) -> bool:
    """By the bits: an exponent of all ones is infinite or no number."""
    if info.dtype == "F32":
        mask, kind = 0x7F800000, "<u4"
    else:
        mask, kind = (0x7C00, "<u2") if info.dtype == "F16" else (0x7F80, "<u2")
    return not bool(((values.view(kind) & mask) == mask).any())


def _described(linears: Mapping[str, AdaptableLinear]) -> str:
    """Their names without what counts layers."""
    ends = dict.fromkeys(name.rpartition(".")[2] for name in linears)
    return ", ".join(ends) or "none"
