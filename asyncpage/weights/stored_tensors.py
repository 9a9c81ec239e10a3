"""A folder's tensors as they are stored, whole or some rows at a time, for the readers of quantised weights.

`QuantisedFolder` hands it to a method (`gptq`, `awq`, `fp8`), which asks for the parts of a weight and what they must
be; nothing is converted here.

INVARIANT: what it returns has the type and shape that were asked for; a part that has others is a `FormatError`
naming the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from asyncpage.errors import FormatError
from asyncpage.formats.safetensors_folder import SafetensorsFolder
from asyncpage.formats.tensor_info import TensorInfo

FLOATS = ("F32", "F16", "BF16")

_TYPES: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "F8_E4M3": torch.float8_e4m3fn,
}


class StoredTensors:
    """Of an open folder, by their names in its files."""

    def __init__(self, folder: SafetensorsFolder) -> None:
        self._folder = folder
        self.path: Path = folder.path
        self.infos: Mapping[str, TensorInfo] = folder.tensors

    def info(self, name: str, types: Sequence[str], dimensions: int | None = None) -> TensorInfo:
        """What the header says. Errors: `FormatError` when it is not there, of another type or number of dimensions."""
        info = self.infos.get(name)
        if info is None:
            raise self.error(name, "is not there, and a quantised weight needs it")
        if info.dtype not in types:
            raise self.error(name, f"has dtype {info.dtype}, {' or '.join(types)} is needed")
        if dimensions is not None and len(info.shape) != dimensions:
            raise self.error(name, f"has shape {list(info.shape)}, {dimensions} dimensions are needed")
        return info

    def require(self, name: str, types: Sequence[str], *shape: int) -> None:
        """Errors: `FormatError` when it is not there, or of another type or shape."""
        found = self.info(name, types).shape
        if found != shape:
            raise self.error(name, f"has shape {list(found)}, {list(shape)} is needed to fit the other parts")

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """A copy of rows `start` to `stop` of a matrix, in the type it is stored in."""
        info = self.infos[name]
        row_bytes = info.size // max(1, info.shape[0])
        out = torch.empty(stop - start, *info.shape[1:], dtype=_TYPES[info.dtype])
        # Bytes on both sides: the file need not be aligned to its element.
        out.reshape(-1).view(torch.uint8).numpy()[:] = self._folder.raw(name)[start * row_bytes : stop * row_bytes]
        return out

    def whole(self, name: str) -> torch.Tensor:
        """A copy of one tensor, in the type it is stored in."""
        info = self.infos[name]
        out = torch.empty(info.shape, dtype=_TYPES[info.dtype])
        out.reshape(-1).view(torch.uint8).numpy()[:] = self._folder.raw(name)
        return out

    def scales(self, name: str) -> torch.Tensor:
        """A copy of one tensor in float32. Errors: `FormatError` when it holds what is no number."""
        out = self.whole(name).float()
        if not bool(torch.isfinite(out).all()):
            raise self.error(name, "holds an infinite scale, or one that is no number")
        return out

    def release(self, *names: str) -> None:
        """Drop the tensors' pages from the resident set after they were read."""
        for name in names:
            self._folder.release(name)

    def error(self, name: str, reason: str) -> FormatError:
        """A tensor of this folder that breaks its format."""
        return FormatError(str(self.path), f"tensor {name[:200]!r}", reason)
