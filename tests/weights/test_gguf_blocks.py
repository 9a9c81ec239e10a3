"""Rows of a file's blocks, as they are multiplied by, mean what the tensor means, whatever its way back from there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from asyncpage.weights import gguf_source
from asyncpage.weights.checkpoint import Checkpoint, open_checkpoint
from asyncpage.weights.stored import Grid
from tests.weights.blocky_models import BLOCKY

WriteGGUF = Callable[..., Path]
KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def check_blocks(checkpoint: Checkpoint, kind: str) -> int:
    """How many matrices have blocks."""
    count = 0
    for name in checkpoint.names:
        grid, values = checkpoint.grid(name), checkpoint.tensor(name, torch.float32).numpy()
        if grid is None or checkpoint.stored(name).kind == "F32":
            continue
        assert grid == Grid(kind, *values.shape)
        rows = np.concatenate([np.array(rows) for rows in checkpoint.blocks(name)])
        assert np.array_equal(quants.dequantize(rows, GGMLQuantizationType[kind]), values), name
        count += 1
    return count


@pytest.mark.parametrize("chunk", [1, 1 << 20])
@pytest.mark.parametrize("name", BLOCKY)
def test_blocks_are_the_tensors_of_every_family(
    write_gguf: WriteGGUF, name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_source, "CHUNK_VALUES", chunk)
    checkpoint = open_checkpoint(write_gguf(BLOCKY[name](), dtype=GGMLQuantizationType.Q8_0))
    assert check_blocks(checkpoint, "Q8_0") >= 10
    checkpoint.close()


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_the_tensors_in_every_kind(write_gguf: WriteGGUF, kind: str) -> None:
    checkpoint = open_checkpoint(write_gguf(BLOCKY["llama"](), dtype=GGMLQuantizationType[kind]))
    assert check_blocks(checkpoint, kind) == 2 * 7 + 2
    checkpoint.close()


def test_what_has_no_name_has_no_grid(write_gguf: WriteGGUF) -> None:
    checkpoint = open_checkpoint(write_gguf(BLOCKY["llama"](), dtype=GGMLQuantizationType.Q8_0))
    assert checkpoint.grid("model.layers.9.mlp.up_proj.weight") is None
    assert checkpoint.grid("model.norm.weight") is None
    checkpoint.close()
