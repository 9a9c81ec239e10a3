"""Qwen2 with experts against transformers: a shared expert that each row weighs, and windows in the lower layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

from asyncpage.errors import ModelError
from tests.models.tiny import Variants, check_mixed_steps, check_saved, ours, tiny

BASE: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
VARIANTS: Variants = {
    "plain": {},
    "no biases, weights that add up, a dense layer": {
        "qkv_bias": False,
        "norm_topk_prob": True,
        "mlp_only_layers": [0],
    },
    "windows in the lower layers": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
}


def oracle(name: str) -> Any:
    return tiny(Qwen2MoeConfig, Qwen2MoeForCausalLM, BASE | VARIANTS[name])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_transformers_in_mixed_steps(name: str, backend: str, paged_model: Any) -> None:
    check_mixed_steps(oracle(name), paged_model, backend)


def test_windows_that_no_layer_type_names_are_in_every_other_of_the_lower_layers() -> None:
    reference = tiny(Qwen2MoeConfig, Qwen2MoeForCausalLM, BASE | VARIANTS["windows in the lower layers"])
    assert reference.config.layer_types == ["sliding_attention", "full_attention", "full_attention"]
    model = ours(reference, layer_types=None)
    assert [model.groups[group].window for group in model.layer_groups] == [9, 0, 0]


def test_a_saved_folder_gives_transformers_greedy_tokens(tmp_path: Path) -> None:
    check_saved(oracle("plain"), tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size must be a positive whole number"),
        ({"qkv_bias": 1}, "qkv_bias must be true or false, found 1"),
    ],
    ids=str,
)
def test_what_would_change_the_answer_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        ours(oracle("plain"), **changes)
