"""SmolLM3 against transformers: layers that turn no positions, and windows in these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import SmolLM3Config, SmolLM3ForCausalLM

from asyncpage.errors import ModelError
from tests.models.tiny import Variants, check_mixed_steps, check_saved, config_of, ours, tiny

BASE: dict[str, Any] = {"num_hidden_layers": 5}
VARIANTS: Variants = {
    "plain": {},
    "every other layer": {"no_rope_layer_interval": 2},
    "listed layers": {"no_rope_layers": [0, 1, 0, 0, 1]},
    "windows where no positions turn": {
        "use_sliding_window": True,
        "sliding_window": 9,
        "no_rope_layer_interval": 2,
    },
    "biases and a head of its own": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
}


def oracle(name: str) -> Any:
    return tiny(SmolLM3Config, SmolLM3ForCausalLM, BASE | VARIANTS[name])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_transformers_in_mixed_steps(name: str, backend: str, paged_model: Any) -> None:
    check_mixed_steps(oracle(name), paged_model, backend)


def test_a_saved_folder_gives_transformers_greedy_tokens(tmp_path: Path) -> None:
    check_saved(oracle("windows where no positions turn"), tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"no_rope_layers": [1, 0]}, r"no_rope_layers must have a 0 or a 1 for each of 5 layers, found \[1, 0\]"),
        ({"no_rope_layers": [2] * 5}, "no_rope_layers must have a 0 or a 1"),
        ({"layer_types": ["sliding_attention"] * 5}, "layers with sliding_attention need a sliding_window"),
    ],
    ids=str,
)
def test_what_would_change_the_answer_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        ours(oracle("plain"), **changes)


def test_a_config_that_names_no_base_has_the_familys_own(paged_model: Any) -> None:
    own = {"rope_type": "default", "rope_theta": 2_000_000.0}
    reference = tiny(SmolLM3Config, SmolLM3ForCausalLM, BASE | {"rope_parameters": own})
    config = {name: value for name, value in config_of(reference).items() if name != "rope_parameters"}
    assert SmolLM3Config(**config).rope_parameters == own
    check_mixed_steps(reference, paged_model, "cpu", rope_parameters=None)
