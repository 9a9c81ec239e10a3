"""Qwen2 against transformers: its biases, and the settings that together make windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM

from asyncpage.errors import ModelError
from tests.models.tiny import Variants, check_mixed_steps, check_saved, ours, tiny

BASE: dict[str, Any] = {}
VARIANTS: Variants = {
    "plain": {},
    "tied head": {"tie_word_embeddings": True},
    "a window that is not used": {"sliding_window": 9, "max_window_layers": 0},
    "windows in the upper layers": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "windows everywhere": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0},
    "windows where layer types say": {
        "use_sliding_window": True,
        "sliding_window": 9,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
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
    return tiny(Qwen2Config, Qwen2ForCausalLM, BASE | VARIANTS[name])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_transformers_in_mixed_steps(name: str, backend: str, paged_model: Any) -> None:
    check_mixed_steps(oracle(name), paged_model, backend)


def test_a_saved_folder_gives_transformers_greedy_tokens(tmp_path: Path) -> None:
    check_saved(oracle("windows in the upper layers"), tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"layer_types": ["sliding_attention"] * 3}, "layers with sliding_attention need a sliding_window"),
        (
            {"layer_types": ["sliding_attention"] * 3, "use_sliding_window": True, "sliding_window": None},
            "layers with sliding_attention need a sliding_window",
        ),
        ({"max_window_layers": -1}, "max_window_layers must be a whole number, found -1"),
        ({"use_sliding_window": "yes"}, "use_sliding_window must be true or false, found 'yes'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5 is not supported"),
    ],
    ids=str,
)
def test_what_would_change_the_answer_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        ours(oracle("plain"), **changes)
