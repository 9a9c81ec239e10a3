"""Qwen3 with experts against transformers: which layers have them, and how their weights are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from asyncpage.errors import ModelError
from tests.models.tiny import Variants, check_mixed_steps, check_saved, ours, tiny

BASE: dict[str, Any] = {
    "head_dim": 8,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
VARIANTS: Variants = {
    "plain": {},
    "weights as they are, biases and a tied head": {
        "norm_topk_prob": False,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    "every other layer": {"decoder_sparse_step": 2, "num_hidden_layers": 4},
    "a dense layer by its index, under a window": {
        "mlp_only_layers": [1],
        "use_sliding_window": True,
        "sliding_window": 9,
    },
}


def oracle(name: str) -> Any:
    return tiny(Qwen3MoeConfig, Qwen3MoeForCausalLM, BASE | VARIANTS[name])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_transformers_in_mixed_steps(name: str, backend: str, paged_model: Any) -> None:
    check_mixed_steps(oracle(name), paged_model, backend)


def test_a_saved_folder_gives_transformers_greedy_tokens(tmp_path: Path) -> None:
    check_saved(oracle("every other layer"), tmp_path)


def test_the_name_that_published_files_have_for_the_number_of_experts_is_understood(paged_model: Any) -> None:
    check_mixed_steps(oracle("plain"), paged_model, "cpu", num_experts=16, num_local_experts=None)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_experts_per_tok": 17}, r"num_experts_per_tok \(17\) must not exceed num_experts \(16\)"),
        ({"mlp_only_layers": 1}, "mlp_only_layers must be a list of layers' indices, found 1"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step must be a positive whole number, found 0"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob must be true or false, found 'yes'"),
        ({"num_experts": 8}, r"num_experts \(8\) and num_local_experts \(16\) contradict each other"),
        ({"use_sliding_window": True, "sliding_window": 0}, "sliding_window must be a positive whole number"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types .* is not supported by this model type; null is"),
    ],
    ids=str,
)
def test_what_would_change_the_answer_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        ours(oracle("plain"), **changes)
