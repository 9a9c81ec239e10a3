"""Gemma 3 for text against transformers: two rotary bases, five windows to one, norms of heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from asyncpage.errors import ModelError
from asyncpage.models.model import Model
from tests.models.tiny import Variants, check_mixed_steps, check_saved, config_of, ours, tiny

BASE: dict[str, Any] = {
    "num_hidden_layers": 7,
    "head_dim": 8,
    "sliding_window": 9,
    "query_pre_attn_scalar": 8,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 2000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
VARIANTS: Variants = {
    "plain": {},
    "a stretched base": {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        }
    },
    "a window beyond the context": {"sliding_window": 500},
    "a cap of logits, a head of its own and biases": {
        "final_logit_softcapping": 2.0,
        "tie_word_embeddings": False,
        "attention_bias": True,
    },
    "windows where layer types say": {"layer_types": ["full_attention", "sliding_attention"] * 3 + ["full_attention"]},
}


def oracle(name: str) -> Any:
    return tiny(Gemma3TextConfig, Gemma3ForCausalLM, BASE | VARIANTS[name], norm=0.0)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_transformers_in_mixed_steps(name: str, backend: str, paged_model: Any) -> None:
    check_mixed_steps(oracle(name), paged_model, backend)


def test_a_saved_folder_gives_transformers_greedy_tokens(tmp_path: Path) -> None:
    check_saved(oracle("a stretched base"), tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention True is not supported"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not supported by this model type; null is"),
        (
            {"rope_parameters": {"rope_type": "default"}},
            "for full_attention and for sliding_attention, found rope",
        ),
        ({"sliding_window": None}, "layers with sliding_attention need a sliding_window"),
        ({"layer_types": None, "sliding_window_pattern": 0}, "sliding_window_pattern must be a positive whole number"),
    ],
    ids=str,
)
def test_what_would_change_the_answer_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        ours(oracle("plain"), **changes)


def test_five_layers_of_six_see_a_window() -> None:
    def windows(model: Model) -> list[int]:
        return [model.groups[group].window for group in model.layer_groups]

    assert windows(ours(oracle("plain"))) == [9, 9, 9, 9, 9, 0, 9]
    assert windows(ours(oracle("plain"), layer_types=None, sliding_window_pattern=2)) == [9, 0, 9, 0, 9, 0, 9]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_older_words_for_the_same_bases_are_understood(backend: str, paged_model: Any) -> None:
    older = {
        "rope_parameters": None,
        "rope_theta": 2000.0,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "layer_types": None,
        "sliding_window_pattern": 6,
    }
    check_mixed_steps(oracle("a stretched base"), paged_model, backend, **older)


def test_a_config_that_names_no_base_has_the_familys_own(paged_model: Any) -> None:
    own = {
        "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    reference = tiny(Gemma3TextConfig, Gemma3ForCausalLM, BASE | {"rope_parameters": own}, norm=0.0)
    config = {name: value for name, value in config_of(reference).items() if name != "rope_parameters"}
    assert Gemma3TextConfig(**config).rope_parameters == own
    check_mixed_steps(reference, paged_model, "cpu", rope_parameters=None)
