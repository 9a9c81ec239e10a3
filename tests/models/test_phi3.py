"""Phi-3 against transformers: fused tensors, a rotation of a part of each head, LongRoPE, a window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Phi3Config, Phi3ForCausalLM

from asyncpage.errors import ModelError
from tests.models.tiny import Variants, check_mixed_steps, check_saved, ours, tiny

LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "short_factor": [1.0, 1.2, 1.5, 3.0],
    "long_factor": [2.0, 3.0, 5.0, 9.0],
}
BASE: dict[str, Any] = {"num_key_value_heads": 6}
VARIANTS: Variants = {
    "plain": {},
    "grouped heads and a tied head": {"num_key_value_heads": 3, "tie_word_embeddings": True},
    "a window": {"sliding_window": 9},
    "a part of each head": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    },
    "longrope": {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
    "longrope of a part of each head": {
        "rope_parameters": {**LONGROPE, "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]}
        | {"partial_rotary_factor": 0.5},
        "original_max_position_embeddings": 64,
    },
}


def oracle(name: str) -> Any:
    return tiny(Phi3Config, Phi3ForCausalLM, BASE | VARIANTS[name])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_transformers_in_mixed_steps(name: str, backend: str, paged_model: Any) -> None:
    check_mixed_steps(oracle(name), paged_model, backend)


def test_a_saved_folder_gives_transformers_greedy_tokens(tmp_path: Path) -> None:
    check_saved(oracle("longrope"), tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope scaling 'linear' is not supported by this"),
        ({"rope_scaling": {**LONGROPE, "short_factor": [1.0]}}, "needs 4 numbers in short_factor"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types .* is not supported by this model type; null is"),
        ({"sliding_window": 0}, "sliding_window must be a positive whole number, found 0"),
        ({"rope_scaling": "su"}, "rope_scaling must be an object, found 'su'"),
    ],
    ids=str,
)
def test_what_would_change_the_answer_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        ours(oracle("plain"), **changes)


@pytest.mark.parametrize("word", ["su", "yarn", "longrope"])
def test_the_older_words_for_longrope_mean_the_same(word: str, paged_model: Any) -> None:
    lists = {name: LONGROPE[name] for name in ("short_factor", "long_factor")}
    older = {"rope_parameters": None, "rope_theta": 500.0, "rope_scaling": {"type": word, **lists}}
    check_mixed_steps(oracle("longrope"), paged_model, "cpu", **older)


def test_the_trained_context_is_what_it_serves() -> None:
    assert ours(oracle("longrope")).max_model_len == 64
    assert ours(oracle("plain")).max_model_len == 128
    same = {**LONGROPE, "long_factor": LONGROPE["short_factor"]}
    assert ours(oracle("longrope"), rope_parameters=None, rope_scaling=same).max_model_len == 128
