"""Mistral and Ministral against transformers: windows over all layers, over some, and over none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MinistralConfig, MinistralForCausalLM, MistralConfig, MistralForCausalLM

from asyncpage.errors import ModelError
from asyncpage.messages import LayerGroup
from asyncpage.models.registry import outline_model
from tests.models.tiny import Variants, check_mixed_steps, check_saved, config_of, ours, tiny

MISTRAL: Variants = {
    "plain": {"sliding_window": None},
    "a window": {"sliding_window": 9},
    "a window beyond the context": {"sliding_window": 4096},
}
MINISTRAL: Variants = {
    "windows and full": {
        "head_dim": 8,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}


def oracle(name: str) -> Any:
    if name in MISTRAL:
        return tiny(MistralConfig, MistralForCausalLM, MISTRAL[name])
    return tiny(MinistralConfig, MinistralForCausalLM, MINISTRAL[name])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", [*MISTRAL, *MINISTRAL])
def test_logits_are_transformers_in_mixed_steps(name: str, backend: str, paged_model: Any) -> None:
    check_mixed_steps(oracle(name), paged_model, backend)


@pytest.mark.parametrize("name", ["a window", "windows and full"])
def test_a_saved_folder_gives_transformers_greedy_tokens(name: str, tmp_path: Path) -> None:
    check_saved(oracle(name), tmp_path)


def test_layers_are_grouped_by_window_full_attention_first() -> None:
    model = ours(oracle("windows and full"))
    assert model.groups == (LayerGroup("full", 0, 1), LayerGroup("window", 9, 1), LayerGroup("window", 9, 1))
    assert model.layer_groups == (1, 0, 2)
    assert model.layer_slots == (0, 0, 0)
    assert [spec.window for spec in model.specs("float32", 16)] == [0, 9, 9]
    assert ours(oracle("a window beyond the context")).groups == (LayerGroup("full", 0, 3),)


def test_what_a_config_leaves_out_is_the_familys_own_and_null_is_none() -> None:
    config = config_of(oracle("plain")) | {"num_attention_heads": 8, "max_position_embeddings": 32768}
    del config["num_key_value_heads"]
    (spec,) = outline_model(config, torch.float32).model.specs("float32", 16)
    assert (spec.window, spec.kv_heads) == (0, MistralConfig().num_key_value_heads)
    del config["sliding_window"]
    (spec,) = outline_model(config | {"num_key_value_heads": None}, torch.float32).model.specs("float32", 16)
    assert (spec.window, spec.kv_heads) == (MistralConfig().sliding_window, 8)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sliding_window": None}, "layers with sliding_attention need a sliding_window"),
        ({"sliding_window": -4}, "sliding_window must be a positive whole number, found -4"),
        ({"layer_types": ["chunked_attention"] * 3}, "layer type 'chunked_attention' is not supported"),
        ({"layer_types": ["full_attention"] * 2}, "layer_types names 2 layers, num_hidden_layers is 3"),
        ({"layer_types": "all"}, "layer_types is 'all', num_hidden_layers is 3"),
    ],
    ids=str,
)
def test_what_would_change_the_answer_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        ours(oracle("windows and full"), **changes)
