"""Settings come out in one spelling, and impossible ones are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from asyncpage.errors import FormatError
from asyncpage.weights.settings import settle

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


def test_what_a_llama_leaves_out_is_filled_in() -> None:
    config = settle(LLAMA, "config.json")
    filled = {name: value for name, value in config.items() if name not in LLAMA}
    assert filled == {
        "architectures": ["LlamaForCausalLM"], "num_key_value_heads": 4, "head_dim": 16, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "attention_bias": False, "mlp_bias": False,
        "sliding_window": None, "rope_theta": 10000.0, "rope_scaling": None,
    }  # fmt: skip


def test_the_input_is_left_alone() -> None:
    found = LLAMA | {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    before = {**found, "rope_parameters": dict(found["rope_parameters"])}
    settle(found, "config.json")
    assert found == before


@pytest.mark.parametrize(
    ("spelling", "theta", "scaling"),
    [
        ({}, 10000.0, None),
        ({"rope_theta": 500.0, "rope_scaling": None}, 500.0, None),
        ({"rope_scaling": {"rope_type": "default"}}, 10000.0, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 10000.0, {"rope_type": "linear", "factor": 2.0}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "type": "llama3", "factor": 8.0}},
            5e5,
            {"rope_type": "llama3", "factor": 8.0},
        ),
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, 7.0, None),
        (
            {"rope_parameters": {"rope_theta": 7.0, "rope_type": "yarn", "factor": 4.0}},
            7.0,
            {"rope_type": "yarn", "factor": 4.0},
        ),
    ],
)
def test_rotary_settings_come_out_in_one_spelling(
    spelling: dict[str, Any], theta: float, scaling: dict[str, Any] | None
) -> None:
    config = settle(LLAMA | spelling, "config.json")
    assert (config["rope_theta"], config["rope_scaling"]) == (theta, scaling)
    assert "rope_parameters" not in config


def test_a_partial_rotary_factor_is_found_in_either_spelling() -> None:
    config = settle(LLAMA | {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "config.json")
    assert (config["partial_rotary_factor"], config["rope_scaling"]) == (0.5, None)


def test_rotary_settings_of_each_kind_of_layer_are_left_to_the_family() -> None:
    each = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    assert settle({"model_type": "other", "rope_parameters": each}, "config.json")["rope_parameters"] == each


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"model_type": None}, "model_type"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": 64.0}, "hidden_size"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": 5}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 0}, "head_dim"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": 3}}, "rope_scaling"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"quantization_config": 4}, "quantization_config"),
    ],
)
def test_impossible_settings_are_refused_by_name(change: dict[str, Any], where: str) -> None:
    with pytest.raises(FormatError) as caught:
        settle(LLAMA | change, "config.json")
    assert caught.value.where == where
