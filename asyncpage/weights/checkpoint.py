"""A model's settings and tensors under one vocabulary, whatever file they came in.

The executor opens one, hands `config` and `tensor` to the model and `fingerprint` to the handshake, and closes it.

INVARIANT: names, shapes and order of rows are those of the Hugging Face layout, so a model never asks which
container its weights came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from asyncpage.errors import ModelError
from asyncpage.formats.mapped_file import Bytes
from asyncpage.weights.folder_checkpoint import FolderCheckpoint
from asyncpage.weights.gguf_checkpoint import GGUFCheckpoint
from asyncpage.weights.quantised_folder import QuantisedFolder
from asyncpage.weights.stored import Grid, Stored


class Checkpoint(Protocol):
    """An open model.

    `config` speaks the vocabulary of the family's own `config.json` at Hugging Face: `model_type` is always there,
    whatever else the file leaves out is left out here, too.
    `names` are the tensors there are (`model.layers.0.self_attn.q_proj.weight`). `fingerprint` is equal for equal
    files wherever they lie: 64 hexadecimal digits. `stored_as`: the kinds of quantised weights there are, for people.
    """

    @property
    def config(self) -> dict[str, Any]: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def stored_as(self) -> tuple[str, ...]: ...

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """A new tensor on the CPU in `dtype`; beside it only a few megabytes are needed, and no page is kept.

        Errors: `ModelError` naming the tensor when it is not there or of a type that holds no weights.
        """
        ...

    def stored(self, name: str) -> Stored:
        """How the files hold a tensor. Errors: `ModelError` naming it when it is not there."""
        ...

    def grid(self, name: str) -> Grid | None:
        """The blocks that a matrix is made of, None where there is none of this name or it has no such blocks."""
        ...

    def blocks(self, name: str) -> Iterator[Bytes]:
        """Rows of a matrix that has a grid, in order: uint8 [rows, bytes of a row], valid until the next are asked for.

        Beside them only a few megabytes are needed, and no page is kept.
        """
        ...

    def close(self) -> None:
        """Give the files back; tensors made so far live on."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file, or a folder with `config.json` and safetensors.

    Errors: `ModelError` when it is missing or of a kind that is not read, `FormatError` when it is malformed.
    """
    path = Path(path)
    if path.is_dir():
        plain = FolderCheckpoint(path)
        if plain.config.get("quantization_config") is None:
            return plain
        try:
            return QuantisedFolder(plain)
        except BaseException:
            plain.close()
            raise
    if path.exists() and path.suffix in (".safetensors", ".bin", ".pt", ".pth"):
        raise ModelError(
            f"{path}: a weights file alone says nothing of its model; give the folder with its config.json"
        )
    return GGUFCheckpoint(path)
