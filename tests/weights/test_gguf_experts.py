"""Experts come back one by one, however a file keeps them, and without their neighbours."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from asyncpage.errors import FormatError
from asyncpage.formats.gguf import GGUFFile
from asyncpage.weights.checkpoint import open_checkpoint
from asyncpage.weights.gguf_source import CHUNK_VALUES
from tests.weights.gguf_conversion import published_tensors
from tests.weights.tiny_models import EXPERTS, MODELS, tiny

WriteGGUF = Callable[..., Path]


@pytest.mark.parametrize("name", ["mixtral", "qwen3moe", "deepseek2-lite"])
@pytest.mark.parametrize("experts", ["fused", "split"])  # stacks are what every other test has
def test_experts_come_back_whatever_form_the_file_has(write_gguf: WriteGGUF, name: str, experts: str) -> None:
    model = MODELS[name]()
    checkpoint = open_checkpoint(write_gguf(model, experts=experts))
    expected = published_tensors(model)
    assert set(checkpoint.names) == set(expected)
    for here, rows in expected.items():
        assert torch.equal(checkpoint.tensor(here, torch.float32), torch.from_numpy(rows)), here


def test_an_expert_of_a_quantised_stack_is_its_part_of_the_stack(write_gguf: WriteGGUF) -> None:
    model = tiny("Qwen3Moe", head_dim=16, hidden_size=64, intermediate_size=64, num_experts=5,
                 **EXPERTS | {"moe_intermediate_size": 32})  # fmt: skip
    path = write_gguf(model, dtype=GGMLQuantizationType.Q8_0)
    file, checkpoint = GGUFFile(path), open_checkpoint(path)
    for product in ("gate", "up", "down"):
        info = file.tensors[f"blk.1.ffn_{product}_exps.weight"]
        assert info.dtype == "Q8_0"
        raw = np.array(file.raw(info.name)).reshape(5, info.shape[1], -1)
        stack = quants.dequantize(raw, GGMLQuantizationType.Q8_0)
        for expert in range(5):
            name = f"model.layers.1.mlp.experts.{expert}.{product}_proj.weight"
            assert np.array_equal(checkpoint.tensor(name, torch.float32).numpy(), stack[expert])


def test_an_expert_is_read_without_its_neighbours_and_a_part_at_a_time(write_gguf: WriteGGUF) -> None:
    model = tiny("Qwen3Moe", head_dim=16, hidden_size=1024, num_experts=3, num_hidden_layers=1,
                 **EXPERTS | {"moe_intermediate_size": 1030})  # fmt: skip
    checkpoint = open_checkpoint(write_gguf(model))
    expected = published_tensors(model)
    for product in ("gate", "down"):
        name = f"model.layers.0.mlp.experts.1.{product}_proj.weight"
        assert expected[name].size > CHUNK_VALUES
        tracemalloc.start()
        found = checkpoint.tensor(name, torch.float16)
        _, peak = tracemalloc.get_traced_memory()  # sees numpy's arrays, not the tensor that is returned
        tracemalloc.stop()
        assert peak < 4 * CHUNK_VALUES + 1_000_000
        assert torch.equal(found, torch.from_numpy(expected[name]).half())


@pytest.mark.parametrize("count", [2**32 - 1, 1 << 24, 40_000])
@pytest.mark.parametrize("name", ["mixtral", "qwen3moe", "deepseek2"])
def test_more_experts_than_any_model_has_are_refused_before_they_are_listed(
    write_gguf: WriteGGUF, name: str, count: int
) -> None:
    with pytest.raises(FormatError, match=r"expert_count: found \d+, an integer from \d to"):
        open_checkpoint(write_gguf(MODELS[name](), keys={"expert_count": count}))


def test_a_missing_expert_of_an_old_file_is_named(write_gguf: WriteGGUF) -> None:
    with pytest.raises(FormatError, match=r"tensor 'blk\.1\.ffn_up_exps\.weight': is missing"):
        open_checkpoint(write_gguf(MODELS["mixtral"](), experts="split", drop=("blk.1.ffn_up.3.weight",)))
