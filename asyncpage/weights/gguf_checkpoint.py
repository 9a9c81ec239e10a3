"""A GGUF file as a checkpoint: its settings translated, its tensors dequantised one at a time.

`open_checkpoint` makes it for the executor.

INVARIANT: a row of a query or key projection is where Hugging Face has it: a head's first half of rotary pairs,
then its second, although the file interleaves them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from asyncpage.errors import FormatError, ModelError
from asyncpage.formats.gguf import GGUFFile
from asyncpage.weights.fingerprint import fingerprint
from asyncpage.weights.gguf_llama import Source, llama_config, llama_sources
from asyncpage.weights.settings import settle

# Float32 values dequantised before they are converted: 4 MiB, the most that a tensor needs beside itself.
CHUNK_VALUES = 1 << 20

_Config = Callable[[GGUFFile], dict[str, Any]]
_Sources = Callable[[Mapping[str, Any], GGUFFile], dict[str, Source]]
_ARCHITECTURES: Mapping[str, tuple[_Config, _Sources]] = {"llama": (llama_config, llama_sources)}


class GGUFCheckpoint:
    """See `Checkpoint`. Errors of the constructor: `ModelError` for what is not run, `FormatError` when malformed."""

    def __init__(self, path: Path) -> None:
        self._file = GGUFFile(path)
        try:
            read_config, find_sources = self._architecture()
            self.config = settle(read_config(self._file), str(path))
            self._sources = find_sources(self.config, self._file)
            self.fingerprint = fingerprint(b"", [self._file])
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._sources)

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        source = self._sources.get(name)
        if source is None:
            raise ModelError(f"{self._file.path}: has no tensor that would be {name!r}")
        out = torch.empty(source.shape, dtype=dtype)
        rows = source.shape[0]
        if dtype == torch.float32 and not source.interleaved_heads:
            self._file.dequantize(source.name, out=out.numpy())
        elif len(source.shape) == 1:
            out.copy_(self._rows(source, 0, 1))
        else:
            head_rows = rows // source.interleaved_heads if source.interleaved_heads else 1
            step = max(1, CHUNK_VALUES // (head_rows * source.shape[1])) * head_rows
            for start in range(0, rows, step):
                stop = min(rows, start + step)
                out[start:stop].copy_(self._rows(source, start, stop))
        self._file.release(source.name)
        return out

    def close(self) -> None:
        self._file.close()

    def _rows(self, source: Source, start: int, stop: int) -> torch.Tensor:
        """Float32 rows `start` to `stop`, whole heads where they are interleaved, in Hugging Face's order."""
        values = torch.from_numpy(self._file.dequantize(source.name, start, stop))
        if not source.interleaved_heads:
            return values
        half = source.shape[0] // source.interleaved_heads // 2
        return values.reshape(-1, half, 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)

    def _architecture(self) -> tuple[_Config, _Sources]:
        metadata, path = self._file.metadata, str(self._file.path)
        name = metadata.get("general.architecture")
        if not isinstance(name, str):
            raise FormatError(path, "general.architecture", "is not there")
        parts = metadata.get("split.count", 1)
        if parts not in (0, 1):
            reason = f"the model is split into {parts} files; join them with 'llama-gguf-split --merge' first"
            raise FormatError(path, "split.count", reason)
        if name not in _ARCHITECTURES:
            known = ", ".join(_ARCHITECTURES)
            raise ModelError(f"{path}: GGUF architecture {name[:100]!r} is not supported; supported: {known}")
        return _ARCHITECTURES[name]
