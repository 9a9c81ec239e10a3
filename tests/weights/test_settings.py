"""Settings come out as they were given, and impossible ones are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from asyncpage.errors import FormatError
from asyncpage.weights.settings import settle

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


def test_what_is_given_comes_back_and_nothing_is_added_for_what_is_left_out() -> None:
    each = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    given = LLAMA | {"rope_parameters": each, "head_dim": None, "sliding_window": None, "beside": "x"}
    assert settle(given, "config.json") == given


def test_the_input_is_left_alone() -> None:
    found = LLAMA | {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    before = {**found, "rope_parameters": dict(found["rope_parameters"])}
    settle(found, "config.json")
    assert found == before


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"model_type": None}, "model_type"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"architectures": [["LlamaForCausalLM"]]}, "architectures"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": 64.0}, "hidden_size"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"vocab_size": 10**9}, "vocab_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 0}, "head_dim"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
)
def test_impossible_settings_are_refused_by_name(change: dict[str, Any], where: str) -> None:
    with pytest.raises(FormatError) as caught:
        settle(LLAMA | change, "config.json")
    assert caught.value.where == where
