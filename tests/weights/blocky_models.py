"""Tiny random models whose rows are whole blocks of every grid: all that is multiplied has a multiple of 32 columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from tests.weights.tiny_models import tiny

SIZES: dict[str, Any] = {
    "hidden_size": 96, "intermediate_size": 64, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

BLOCKY: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: tiny("Llama", **SIZES, attention_bias=True, mlp_bias=True),
    "llama-tied": lambda: tiny("Llama", **SIZES, tie_word_embeddings=True),
    "qwen2": lambda: tiny("Qwen2", **SIZES),
    "gemma2": lambda: tiny("Gemma2", **SIZES, query_pre_attn_scalar=16, tie_word_embeddings=True),
    "phi3": lambda: tiny("Phi3", **SIZES, original_max_position_embeddings=128),
    "mixtral": lambda: tiny("Mixtral", **SIZES, num_local_experts=5),
    "qwen3moe": lambda: tiny("Qwen3Moe", **SIZES, num_experts=5, norm_topk_prob=True, **EXPERTS),
    "deepseek2-lite": lambda: tiny(
        "DeepseekV2", hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=2,
        q_lora_rank=None, n_routed_experts=5, n_shared_experts=2, first_k_dense_replace=1, kv_lora_rank=32,
        qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=32, num_hidden_layers=3, **EXPERTS,
    ),
}  # fmt: skip
