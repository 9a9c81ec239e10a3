"""Where experts run and what is counted of them, by the runner that loads them; two ranks are two processes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import AsyncpageError, FormatError, UsageError
from asyncpage.executor.expert_ranks import slots_of
from asyncpage.executor.process import Runner
from asyncpage.executor.runner import load_runner
from asyncpage.messages import EMPTY, Load, NewRow, RequestId, Step

EXPERTS, LAYERS, TOP_K, PROMPT = 5, 2, 2, 21
SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixtral")
    torch.manual_seed(0)
    MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=EXPERTS, num_experts_per_tok=TOP_K)).save_pretrained(
        path
    )
    return path


@pytest.fixture(scope="module")
def dense_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(path)
    return path


def runner_of(folder: Path, **settings: Any) -> Runner:
    load = {
        "model_path": str(folder), "dtype": "float32", "kv_cache_dtype": "auto", "device": "cpu",
        "max_model_len": None, "max_num_seqs": 2, "max_num_batched_tokens": 32, "block_size": 16,
        "kv_cache_bytes": None, "num_kv_blocks": 20, "attention_backend": "cpu", "grammar_backend": "builtin",
        "cpu_threads": 1,
    }  # fmt: skip
    return load_runner(Load({**load, **settings}))


def tokens_of(runner: Runner, count: int) -> list[int]:
    prompt = np.random.default_rng(4).integers(3, 199, PROMPT, dtype=np.int32).tobytes()
    table = np.arange(1, 6, dtype=np.int32).tobytes()
    row = NewRow(0, RequestId(1), prompt, PROMPT, 0, (table,), SamplingParams(temperature=0.0), 0)
    tokens: list[int] = []
    for number in range(count):
        work = np.array([0], dtype=np.int32), np.array([1 if number else PROMPT], dtype=np.int32)
        tokens += runner.execute(Step(number + 1, 1, *work, EMPTY, () if number else (row,))).tokens.tolist()
    return tokens


def children() -> set[int]:
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_slots_are_in_the_order_of_ranks() -> None:
    assert slots_of((1, 0, 2, 0, 1)) == (1, 3, 0, 4, 2)


def test_three_ranks_placed_by_load_give_the_tokens_of_one_and_count_on(folder: Path, tmp_path: Path) -> None:
    path, before = tmp_path / "load.json", children()
    alone = runner_of(folder, expert_load=str(path))
    expected = tokens_of(alone, 10)
    alone.close()
    first = json.loads(path.read_text())["tokens"]
    assert [sum(counts) for counts in first.values()] == [(PROMPT + 9) * TOP_K] * LAYERS
    spread = runner_of(folder, expert_load=str(path), expert_parallel_size=3)
    assert len(children() - before) == 2
    assert tokens_of(spread, 10) == expected
    spread.close()
    assert children() == before
    # The same rows went to the same experts, wherever these were.
    assert json.loads(path.read_text())["tokens"] == {
        layer: [2 * count for count in counts] for layer, counts in first.items()
    }


def test_a_rank_that_cannot_load_says_why_and_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    broken, before, open_files = tmp_path / "broken", children(), len(os.listdir("/proc/self/fd"))
    broken.mkdir()
    for file in folder.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = broken / "model.safetensors"
    # In turn, expert 1 of 5 is another rank's: only that rank misses it.
    weights.write_bytes(weights.read_bytes().replace(b"layers.1.block_sparse_moe.experts.1.w2", b"x" * 38, 1))
    with pytest.raises(AsyncpageError, match=r"tensor 'model.layers.1.block_sparse_moe.experts.1.w2.weight'"):
        runner_of(broken, expert_parallel_size=2)
    assert children() == before
    assert len(os.listdir("/proc/self/fd")) == open_files


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"expert_parallel_size": 6}, "--expert-parallel-size 6 is more than the 5 experts of a layer; lower it"),
        ({"expert_load": "/nowhere/at/all.json"}, "there is no folder /nowhere/at; make it"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_the_flag_to_turn(settings: dict[str, Any], text: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        runner_of(folder, **settings)


def test_another_models_load_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    path.write_text('{"tokens": {"0": [1, 2, 3, 4, 5]}}')
    with pytest.raises(UsageError, match="was measured on a model with other experts; name another file"):
        runner_of(folder, expert_load=str(path))
    path.write_text("[]")
    with pytest.raises(FormatError, match=str(path)):
        runner_of(folder, expert_load=str(path))


@pytest.mark.parametrize("settings", [{"expert_parallel_size": 2}, {"expert_load": "load.json"}], ids=str)
def test_a_model_without_experts_has_none_to_share_or_to_measure(settings: dict[str, Any], dense_folder: Path) -> None:
    with pytest.raises(UsageError, match="is for models with experts, and this one has none; leave it out"):
        runner_of(dense_folder, **settings)
