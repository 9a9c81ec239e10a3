"""Mixtral against transformers: experts whose weights add up to one, by the names that only its checkpoints have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import MixtralConfig, MixtralForCausalLM

from asyncpage.errors import ModelError
from tests.models.tiny import Variants, check_mixed_steps, check_saved, ours, tiny

VARIANTS: Variants = {
    "plain": {"num_local_experts": 4},
    "eight experts, three a row, under a window": {"num_experts_per_tok": 3, "sliding_window": 9},
}


def oracle(name: str) -> Any:
    return tiny(MixtralConfig, MixtralForCausalLM, VARIANTS[name])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_transformers_in_mixed_steps(name: str, backend: str, paged_model: Any) -> None:
    check_mixed_steps(oracle(name), paged_model, backend)


def test_a_saved_folder_gives_transformers_greedy_tokens(tmp_path: Path) -> None:
    check_saved(oracle("plain"), tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_experts_per_tok": 5}, r"num_experts_per_tok \(5\) must not exceed num_local_experts \(4\)"),
        ({"num_local_experts": 0}, "num_local_experts must be a positive whole number, found 0"),
        ({"num_local_experts": 5000}, r"num_local_experts \(5000\) of hidden_size 48 are more than any model has"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types .* is not supported by this model type; null is"),
        ({"num_local_experts": 8}, r"block_sparse_moe.gate.weight has shape \[4, 48\], the config asks for \[8, 48\]"),
    ],
    ids=str,
)
def test_what_would_change_the_answer_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        ours(oracle("plain"), **changes)
