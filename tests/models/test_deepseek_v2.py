"""DeepSeek-V2 and its Lite against transformers: latent attention, its positions, and experts in groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2MLP

from asyncpage.backends.contract import DeviceInfo
from asyncpage.backends.cpu import CpuBackend
from asyncpage.backends.reference import ReferenceBackend
from asyncpage.errors import ModelError
from tests.models.tiny import Variants, check_mixed_steps, check_saved, ours, tiny

YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "mscale": 0.6,
    "mscale_all_dim": 0.9,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 32,
}
BASE: dict[str, Any] = {
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "q_lora_rank": None,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-3,
}
VARIANTS: Variants = {
    "lite, in a stretched context": {"rope_parameters": YARN},
    "queries through a narrow row, experts in groups": {
        "q_lora_rank": 28,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 0,
    },
    "biases": {"q_lora_rank": 28, "attention_bias": True, "mlp_bias": True, "num_hidden_layers": 2},
}


def oracle(name: str) -> Any:
    return tiny(DeepseekV2Config, DeepseekV2ForCausalLM, BASE | VARIANTS[name])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_transformers_in_mixed_steps(name: str, backend: str, paged_model: Any) -> None:
    check_mixed_steps(oracle(name), paged_model, backend)


def test_a_saved_folder_gives_transformers_greedy_tokens(tmp_path: Path) -> None:
    check_saved(oracle("lite, in a stretched context"), tmp_path)


def test_layers_between_those_with_experts_are_dense(paged_model: Any) -> None:
    reference = oracle("queries through a narrow row, experts in groups")
    torch.manual_seed(5)
    reference.model.layers[1].mlp = DeepseekV2MLP(reference.config)  # that library knows no moe_layer_freq
    check_mixed_steps(reference, paged_model, "cpu", moe_layer_freq=2)


@pytest.mark.parametrize("backend", [CpuBackend, ReferenceBackend])
def test_a_token_is_cached_as_one_row_for_all_heads(backend: Any) -> None:
    (spec,) = ours(oracle("biases")).specs("bfloat16", 16)
    assert backend.kv_layout(spec, DeviceInfo("cpu", "x86_64")).block_bytes == 16 * (20 + 8) * 2
    assert (spec.kind, spec.q_heads, spec.kv_heads, spec.head_dim, spec.v_head_dim) == ("mla", 6, 1, 28, 20)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported by this model type; greedy and group"),
        ({"norm_topk_prob": True}, "norm_topk_prob True is not supported by this model type; False is"),
        ({"scoring_func": "sigmoid"}, "scoring_func 'sigmoid' is not supported by this model type; 'softmax' is"),
        ({"num_key_value_heads": 2}, r"num_key_value_heads \(2\) must be num_attention_heads \(6\)"),
        ({"topk_method": "group_limited_greedy"}, "n_group is missing"),
        (
            {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 1},
            "8 n_routed_experts in 4 n_group, of which topk_group keeps 1, do not give 3 num_experts_per_tok",
        ),
        ({"rope_parameters": {**YARN, "mscale_all_dim": None}}, "rope scaling's mscale 0.6 needs an mscale_all_dim"),
        ({"routed_scaling_factor": -1}, "routed_scaling_factor must be a positive number, found -1"),
    ],
    ids=str,
)
def test_what_would_change_the_answer_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        ours(oracle("lite, in a stretched context"), **changes)
