"""OLMo 2 against transformers: norms behind the parts, queries and keys normed over all heads together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Olmo2Config, Olmo2ForCausalLM

from asyncpage.errors import ModelError
from tests.models.tiny import Variants, check_mixed_steps, check_saved, ours, tiny

BASE: dict[str, Any] = {}
VARIANTS: Variants = {
    "plain": {},
    "as many key heads": {"num_key_value_heads": 6},
    "biases and a tied head": {"attention_bias": True, "tie_word_embeddings": True},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "rope_theta": 500.0,
        }
    },
}


def oracle(name: str) -> Any:
    return tiny(Olmo2Config, Olmo2ForCausalLM, BASE | VARIANTS[name])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_transformers_in_mixed_steps(name: str, backend: str, paged_model: Any) -> None:
    check_mixed_steps(oracle(name), paged_model, backend)


def test_a_saved_folder_gives_transformers_greedy_tokens(tmp_path: Path) -> None:
    check_saved(oracle("plain"), tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"is_causal": False}, "is_causal False is not supported"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope scaling 'spiral' is not supported"),
    ],
    ids=str,
)
def test_what_would_change_the_answer_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        ours(oracle("plain"), **changes)
