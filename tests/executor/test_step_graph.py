"""What a step is made of, from folders and GGUF files: how weights are stored there, and what the model leaves."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from safetensors.torch import load_file, save_file

from asyncpage.config import EngineConfig
from asyncpage.errors import UsageError
from asyncpage.executor.step_clock import measure
from asyncpage.executor.step_graph import StepGraph, read_step_graph
from asyncpage.house import executor_settings
from tests.weights.gguf_conversion import Options, write_gguf
from tests.weights.quantised_models import gptq, write_quantised
from tests.weights.tiny_models import MODELS, tiny


def settings(path: Path, **changes: Any) -> dict[str, Any]:
    return executor_settings(EngineConfig(model=str(path), cpu_threads=1, **changes), path, None, None)


def saved(name: str, folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own, about itself
        MODELS[name]().save_pretrained(folder)
    return folder


def stored_as(graph: StepGraph) -> dict[str, tuple[str, ...]]:
    return {key.split(".", 2)[-1]: kinds for key, kinds in graph.stored_as.items()}


@pytest.mark.parametrize("name", ["llama", "phi3", "gemma2", "deepseek2-lite", "qwen3moe"])
def test_bytes_in_a_gguf_file_are_those_that_the_files_own_library_counts(name: str, tmp_path: Path) -> None:
    path = write_gguf(MODELS[name](), tmp_path / "model.gguf", Options(dtype=GGMLQuantizationType.F16))
    expected = sum(int(tensor.n_bytes) for tensor in GGUFReader(path).tensors if "rope_factors" not in tensor.name)
    graph = read_step_graph(settings(path), None)
    assert sum(graph.stored_sizes.values()) == expected
    assert graph.elements == graph.listed_elements
    assert graph.unused == ()
    kinds = stored_as(graph)
    assert kinds["attention.output"] == ("F16",)
    assert kinds["norm"] == ("F32",)


def test_a_quantised_folder_tells_how_each_weight_is_stored_and_that_it_is_held_dequantised(tmp_path: Path) -> None:
    method = {"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": False, "desc_act": True}
    written = write_quantised(tiny("Qwen2"), tmp_path, gptq(desc_act=True), method, left_alone=("k_proj",))
    graph = read_step_graph(settings(tmp_path, dtype="bfloat16"), 5)
    kinds = stored_as(graph)
    assert kinds["attention.qkv"] == ("GPTQ in 4 bits", "F32")
    assert kinds["feed_forward.down"] == ("GPTQ in 4 bits",)
    operators = {one.key: one for block in graph.blocks for one in block.operators}
    assert operators["layers.0.feed_forward.down"].held_as == ("bfloat16",)
    parts = [name for name in written.stored if name.startswith("model.layers.0.mlp.down_proj.")]
    expected = sum(written.stored[name].numel() * written.stored[name].itemsize for name in parts)
    assert graph.stored_bytes["layers.0.feed_forward.down"] == expected


def test_a_tensor_that_the_model_does_not_take_is_named(tmp_path: Path) -> None:
    folder = saved("llama", tmp_path)
    tensors = load_file(folder / "model.safetensors") | {"model.layers.0.self_attn.rotary.inv_freq": torch.ones(4)}
    save_file(tensors, folder / "model.safetensors")
    assert read_step_graph(settings(folder), 3).unused == ("model.layers.0.self_attn.rotary.inv_freq",)


def test_a_context_beyond_the_model_is_refused_and_by_default_it_is_the_models(tmp_path: Path) -> None:
    folder = saved("llama", tmp_path)
    assert read_step_graph(settings(folder), None).context == 128
    with pytest.raises(UsageError, match="--context 129 is more than the 128 tokens that this model takes; lower it"):
        read_step_graph(settings(folder), 129)


@pytest.mark.parametrize("name", ["gemma2", "deepseek2-lite"])
def test_the_times_of_all_operators_and_the_rest_are_the_time_of_the_step(name: str, tmp_path: Path) -> None:
    asked = settings(saved(name, tmp_path))
    graph = read_step_graph(asked, 128)
    told: list[tuple[int, int]] = []
    times = measure(graph, asked, 3, lambda done, total: told.append((done, total)))
    keys = {one.key for block in graph.blocks for one in block.operators}
    assert times.decode is not None
    for step in (times.prefill, times.decode):
        assert step.us.keys() == keys
        assert all(spent > 0 for spent in step.us.values())
        assert 0 < step.rest_us < step.total_us
        assert sum(step.us.values()) + step.rest_us == pytest.approx(step.total_us)
    assert (times.prefill.rows, times.prefill.tokens) == (1, 128)
    assert (times.decode.rows, times.decode.tokens) == (3, 1)
    assert told[-1][0] == told[-1][1] == len(told)


def test_many_rows_come_to_their_context_in_as_many_steps_as_two(tmp_path: Path) -> None:
    asked = settings(saved("gemma2", tmp_path))
    graph = read_step_graph(asked, 100)
    told: list[tuple[int, int]] = []
    for rows in (2, 16):
        times = measure(graph, asked, rows, lambda done, total: told.append((done, total)))
        assert times.decode is not None
        assert (times.decode.rows, times.decode.tokens) == (rows, 1)
    assert len(told) == 2 * told[0][1] == 2 * told[-1][0]
