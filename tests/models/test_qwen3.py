"""Qwen3 against transformers: its norms of heads, head sizes of their own, biases and windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncpage.errors import ModelError
from asyncpage.models.registry import outline_model
from tests.models.tiny import Variants, check_mixed_steps, check_saved, config_of, ours, tiny

BASE: dict[str, Any] = {"head_dim": 8}
VARIANTS: Variants = {
    "plain": {},
    "wider heads": {"head_dim": 24},
    "biases and a tied head": {"attention_bias": True, "tie_word_embeddings": True},
    "windows in the upper layers": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
}


def oracle(name: str) -> Any:
    return tiny(Qwen3Config, Qwen3ForCausalLM, BASE | VARIANTS[name])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_transformers_in_mixed_steps(name: str, backend: str, paged_model: Any) -> None:
    check_mixed_steps(oracle(name), paged_model, backend)


def test_a_saved_folder_gives_transformers_greedy_tokens(tmp_path: Path) -> None:
    check_saved(oracle("wider heads"), tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"layer_types": ["sliding_attention"] * 3}, "layers with sliding_attention need a sliding_window"),
        ({"head_dim": 0}, "head_dim must be a positive whole number, found 0"),
        ({"attention_bias": 1}, "attention_bias must be true or false, found 1"),
    ],
    ids=str,
)
def test_what_would_change_the_answer_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        ours(oracle("plain"), **changes)


def test_the_head_size_that_a_config_leaves_out_is_the_familys_own() -> None:
    config = {name: value for name, value in config_of(oracle("plain")).items() if name != "head_dim"}
    (spec,) = outline_model(config, torch.float32).model.specs("float32", 16)
    assert spec.head_dim == Qwen3Config().head_dim
