"""Tiny random models of transformers, one or more a family, whose every count differs as far as the family allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

# Numbers that float32 has exactly, so that settings survive the file bit for bit.
EPSILON = 2.0**-17
FACTORS = [1.0, 1.25, 2.5]
LONG_FACTORS = [1.5, 3.0, 8.0]

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": EPSILON, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 20}
LATENT = {
    "num_key_value_heads": 6, "n_routed_experts": 5, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "kv_lora_rank": 18, "qk_nope_head_dim": 10, "qk_rope_head_dim": 4, "v_head_dim": 14, "num_hidden_layers": 3,
    **EXPERTS,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32,
    "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "short_factor": FACTORS,
    "long_factor": LONG_FACTORS,
}  # fmt: skip


def default_rope(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


def tiny(family: str, **settings: Any) -> PreTrainedModel:
    """`family` as transformers spells it in the names of its classes."""
    config_class = getattr(transformers, f"{family}TextConfig", None) or getattr(transformers, f"{family}Config")
    torch.manual_seed(3)
    model = getattr(transformers, f"{family}ForCausalLM")(config_class(**(SIZES | settings)))
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases are constant when they are new
            parameter.normal_()
    return model  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: tiny("Llama", hidden_size=36, head_dim=8),
    "llama-tied": lambda: tiny("Llama", tie_word_embeddings=True),
    "llama-biased": lambda: tiny("Llama", attention_bias=True, mlp_bias=True),
    "mistral": lambda: tiny("Mistral", head_dim=10, sliding_window=16),
    "mixtral": lambda: tiny("Mixtral", head_dim=10, num_local_experts=5, rope_parameters=default_rope(1e6)),
    "qwen2": lambda: tiny("Qwen2", rope_parameters=default_rope(1e6)),
    "qwen2-yarn": lambda: tiny("Qwen2", rope_parameters=YARN, tie_word_embeddings=True),
    "qwen3": lambda: tiny("Qwen3", head_dim=10, tie_word_embeddings=True),
    "qwen3-biased": lambda: tiny("Qwen3", head_dim=10, attention_bias=True),
    "qwen3moe": lambda: tiny("Qwen3Moe", head_dim=10, num_experts=5, norm_topk_prob=True, **EXPERTS),
    "gemma2": lambda: tiny(
        "Gemma2", head_dim=10, query_pre_attn_scalar=10, sliding_window=16, tie_word_embeddings=True,
        num_hidden_layers=3, attn_logit_softcapping=40.0,
    ),
    "gemma3": lambda: tiny(
        "Gemma3", head_dim=10, query_pre_attn_scalar=10, sliding_window=16, tie_word_embeddings=True,
        num_hidden_layers=7, rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": default_rope(20000.0),
        },
    ),
    "phi3": lambda: tiny("Phi3", rope_parameters={**default_rope(1e4), "partial_rotary_factor": 1.0},
                         original_max_position_embeddings=128, sliding_window=16),
    "phi3-longrope": lambda: tiny("Phi3", original_max_position_embeddings=32, rope_parameters=dict(LONGROPE)),
    "smollm3": lambda: tiny("SmolLM3", num_hidden_layers=5, tie_word_embeddings=True),
    "olmo2": lambda: tiny("Olmo2", rope_parameters=default_rope(500000.0)),
    "deepseek2-lite": lambda: tiny(
        "DeepseekV2", q_lora_rank=None, rope_parameters={**YARN, "mscale": 0.5, "mscale_all_dim": 0.5}, **LATENT
    ),
    "deepseek2": lambda: tiny("DeepseekV2", q_lora_rank=22, routed_scaling_factor=16.0, norm_topk_prob=True,
                              topk_method="group_limited_greedy", n_group=2, topk_group=1,
                              **LATENT | {"n_routed_experts": 6}),
}  # fmt: skip
