"""What a model's weights take when they are loaded, and how its files store them, told before a tensor is read.

`asyncpage doctor` asks it.

INVARIANT: it opens the model as loading does, so that what it says fits is what would be loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from asyncpage.executor.grids import held_kinds
from asyncpage.kernels.variant import lanes_here
from asyncpage.models.quantised_linear import Grids
from asyncpage.models.registry import is_encoder, outline_encoder, outline_model
from asyncpage.weights.checkpoint import open_checkpoint


@dataclass(frozen=True, slots=True)
class Holding:
    """`stored_as`: the kinds of quantised weights in the files. `weights`: how many numbers they are when loaded.

    `family`: what people call the model's. `kinds`: of those that native code multiplies by as they are, and
    `bytes_as_stored` what all weights take then.
    """

    stored_as: tuple[str, ...]
    weights: int
    family: str
    kinds: tuple[str, ...]
    bytes_as_stored: int


def read_holding(path: Path) -> Holding:
    """Errors: `ModelError` for a model that would not be loaded."""
    checkpoint = open_checkpoint(path)
    try:
        outlined = outline_encoder if is_encoder(checkpoint.config) else outline_model
        outline = outlined(checkpoint.config, torch.float32)
        kinds, packed = held_kinds(checkpoint, {}), outline.weight_bytes
        if kinds:
            grids = Grids(checkpoint.grid, checkpoint.blocks, lanes_here())
            packed = outline_model(checkpoint.config, torch.float32, grids=grids).weight_bytes
        weights = outline.weight_bytes // torch.float32.itemsize
        return Holding(checkpoint.stored_as, weights, outline.family, kinds, packed)
    finally:
        checkpoint.close()
