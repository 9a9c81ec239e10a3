"""A GGUF file as a checkpoint: its settings translated, its tensors dequantised one at a time.

`open_checkpoint` makes it for the executor; one module an architecture, or a few close kin, translates.

INVARIANT: names, shapes and order of rows are Hugging Face's, whatever the architecture's converter did to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch

from asyncpage.errors import FormatError, ModelError
from asyncpage.formats.gguf import GGUFFile
from asyncpage.formats.mapped_file import Bytes
from asyncpage.weights.fingerprint import fingerprint
from asyncpage.weights.gguf_deepseek2 import deepseek2_config, deepseek2_sources
from asyncpage.weights.gguf_gemma import gemma2_config, gemma2_sources, gemma3_config, gemma3_sources
from asyncpage.weights.gguf_llama import llama_config, llama_sources, smollm3_config, smollm3_sources
from asyncpage.weights.gguf_olmo2 import olmo2_config, olmo2_sources
from asyncpage.weights.gguf_phi3 import phi3_config, phi3_sources
from asyncpage.weights.gguf_qwen import (
    qwen2_config,
    qwen2_sources,
    qwen3_config,
    qwen3_sources,
    qwen3moe_config,
    qwen3moe_sources,
)
from asyncpage.weights.gguf_source import Source, blocks, kind_of, read
from asyncpage.weights.settings import settle
from asyncpage.weights.stored import Grid, Stored

_Config = Callable[[GGUFFile], dict[str, Any]]
_Sources = Callable[[Mapping[str, Any], GGUFFile], dict[str, Source]]
_ARCHITECTURES: Mapping[str, tuple[_Config, _Sources]] = {
    "deepseek2": (deepseek2_config, deepseek2_sources),
    "gemma2": (gemma2_config, gemma2_sources),
    "gemma3": (gemma3_config, gemma3_sources),
    "llama": (llama_config, llama_sources),
    "olmo2": (olmo2_config, olmo2_sources),
    "phi3": (phi3_config, phi3_sources),
    "qwen2": (qwen2_config, qwen2_sources),
    "qwen3": (qwen3_config, qwen3_sources),
    "qwen3moe": (qwen3moe_config, qwen3moe_sources),
    "smollm3": (smollm3_config, smollm3_sources),
}

_FLOATS = ("F32", "F16", "BF16")


class GGUFCheckpoint:
    """See `Checkpoint`. Errors of the constructor: `ModelError` for what is not run, `FormatError` when malformed."""

    def __init__(self, path: Path) -> None:
        self._file = GGUFFile(path)
        try:
            read_config, find_sources = self._architecture()
            config = read_config(self._file)
            self._sources = find_sources(config, self._file)
            self.config = settle(config, str(path))
            self.fingerprint = fingerprint(b"", [self._file])
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._sources)

    @property
    def stored_as(self) -> tuple[str, ...]:
        bytes_of: dict[str, int] = {}
        for info in self._file.tensors.values():
            if info.dtype not in _FLOATS:
                bytes_of[info.dtype] = bytes_of.get(info.dtype, 0) + info.size
        return tuple(f"GGUF {kind}" for kind in sorted(bytes_of, key=bytes_of.__getitem__, reverse=True))

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        return read(self._file, self._source(name), dtype)

    def grid(self, name: str) -> Grid | None:
        source = self._sources.get(name)
        kind = None if source is None else kind_of(self._file, source)
        return None if source is None or kind is None else Grid(kind, *source.shape)

    def blocks(self, name: str) -> Iterator[Bytes]:
        return blocks(self._file, self._source(name))

    def stored(self, name: str) -> Stored:
        source = self._source(name)
        infos = [self._file.tensors[piece.name] for piece in source.pieces]
        # A piece is whole rows of its tensor, so its share of the items is its share of the bytes.
        columns = prod(source.shape[1:])
        size = sum(
            info.size * (source.groups * piece.rows * columns) // prod(info.shape)
            for piece, info in zip(source.pieces, infos, strict=True)
        )
        return Stored(" and ".join(dict.fromkeys(info.dtype for info in infos)), size)

    def close(self) -> None:
        self._file.close()

    def _source(self, name: str) -> Source:
        source = self._sources.get(name)
        if source is None:
            raise ModelError(f"{self._file.path}: has no tensor that would be {name!r}")
        return source

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
