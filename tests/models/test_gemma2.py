"""Gemma 2 against transformers: caps, alternating windows, scaled embeddings, norms stored less one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from asyncpage.errors import ModelError
from asyncpage.messages import LayerGroup
from asyncpage.models.registry import outline_model
from tests.models.tiny import Variants, check_mixed_steps, check_saved, config_of, ours, prompts, tiny, truth

BASE: dict[str, Any] = {"head_dim": 8, "sliding_window": 9, "query_pre_attn_scalar": 8}
VARIANTS: Variants = {
    "plain": {},
    "four layers": {"num_hidden_layers": 4},
    "caps that bite": {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0},
    "no caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "another scale": {"query_pre_attn_scalar": 37},
    "a head of its own": {"tie_word_embeddings": False},
    "biases": {"attention_bias": True},
    "another activation": {"hidden_activation": "silu"},
    "windows where layer types say": {
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
}


def oracle(name: str) -> Any:
    return tiny(Gemma2Config, Gemma2ForCausalLM, BASE | VARIANTS[name], norm=0.0)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_transformers_in_mixed_steps(name: str, backend: str, paged_model: Any) -> None:
    check_mixed_steps(oracle(name), paged_model, backend)


def test_a_saved_folder_gives_transformers_greedy_tokens(tmp_path: Path) -> None:
    check_saved(oracle("plain"), tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention True is not supported"),
        ({"sliding_window": None}, "layers with sliding_attention need a sliding_window"),
        ({"attn_logit_softcapping": -1.0}, "attn_logit_softcapping must be a positive number, found -1.0"),
        ({"final_logit_softcapping": "hard"}, "final_logit_softcapping must be a positive number, found 'hard'"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be a positive whole number, found 0"),
        ({"hidden_activation": "mish"}, "hidden_activation 'mish' is not supported"),
    ],
    ids=str,
)
def test_what_would_change_the_answer_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        ours(oracle("plain"), **changes)


def test_every_other_layer_sees_a_window_and_the_specs_have_the_cap() -> None:
    model = ours(oracle("four layers"))
    assert model.groups == (LayerGroup("full", 0, 2), LayerGroup("window", 9, 2))
    assert model.layer_groups == (1, 0, 1, 0)
    assert [(spec.window, spec.softcap) for spec in model.specs("float32", 16)] == [(0, 50.0), (9, 50.0)]


def test_what_a_config_leaves_out_is_the_familys_own() -> None:
    config = config_of(oracle("plain"))
    for name in (
        "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "sliding_window",
        "tie_word_embeddings", "hidden_activation", "layer_types", "head_dim", "num_key_value_heads",
    ):  # fmt: skip
        del config[name]
    config |= {"num_attention_heads": 8, "max_position_embeddings": 8192}
    outline = outline_model(config, torch.float32)
    specs = outline.model.specs("float32", 16)
    assert [(spec.window, spec.softcap, spec.head_dim, spec.kv_heads) for spec in specs] == [
        (0, 50.0, 256, 4),
        *[(4096, 50.0, 256, 4)] * 2,
    ]
    assert outline.model.layer_params[0].scale == 256**-0.5


def test_bfloat16_stays_as_near_to_float32_as_transformers_own(paged_model: Any) -> None:
    exact, narrow = oracle("plain"), oracle("plain").bfloat16()
    (tokens,) = prompts(40)
    with torch.inference_mode():
        runner = paged_model(ours(exact, torch.bfloat16), "cpu", kv_dtype="bfloat16")
        sequence = runner.add(tokens)
        runner.step((sequence, 39))
        runner.step((sequence, 1))
    expected = truth(exact, tokens)
    allowed = (truth(narrow, tokens).float() - expected).norm()
    assert (torch.stack(sequence.logits) - expected).norm() < 1.5 * allowed
