"""The settings of a transformers config as llama.cpp's converters write them into GGUF."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import RopeScalingType


def settings(config: Any, is_kv_split: bool) -> dict[str, Any]:
    """What the converters write, by the names of the GGUF specification."""
    given = config.to_dict()
    heads = config.num_attention_heads
    values: dict[str, Any] = {
        "block_count": config.num_hidden_layers, "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size,
        "attention.head_count": heads, "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }  # fmt: skip
    head_dim = given.get("head_dim")
    if head_dim and config.model_type != "deepseek_v2":
        values |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if config.model_type in ("llama", "mistral", "mixtral", "smollm3"):
        values |= {"vocab_size": config.vocab_size, "rope.dimension_count": head_dim or config.hidden_size // heads}
    values |= rope_settings(config)
    if experts := given.get("num_local_experts") or given.get("n_routed_experts"):
        values |= {"expert_count": experts, "expert_used_count": config.num_experts_per_tok}
    match config.model_type:
        case "mistral":
            values["attention.sliding_window"] = config.sliding_window
        case "qwen3_moe":
            values["expert_feed_forward_length"] = config.moe_intermediate_size
        case "gemma2":
            values |= {
                "attn_logit_softcapping": config.attn_logit_softcapping, "rope.freq_base": None,
                "final_logit_softcapping": config.final_logit_softcapping,
                "attention.sliding_window": config.sliding_window,
            }  # fmt: skip
        case "gemma3_text":
            values["attention.sliding_window"] = config.sliding_window
        case "phi3":
            turned = int(config.rope_parameters["partial_rotary_factor"] * config.hidden_size) // heads
            values |= {"rope.dimension_count": turned, "attention.sliding_window": config.sliding_window or 0}
        case "deepseek_v2":
            values |= deepseek_settings(config, is_kv_split)
    return values


def rope_settings(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    values: dict[str, Any] = {"rope.freq_base": rope["rope_theta"]}
    if (local := config.rope_parameters.get("sliding_attention")) is not None:
        values["rope.freq_base_swa"] = local["rope_theta"]
    match rope["rope_type"]:
        case "linear":
            values |= {"rope.scaling.type": RopeScalingType.LINEAR.value, "rope.scaling.factor": rope["factor"]}
        case "yarn":
            values |= {
                "rope.scaling.type": RopeScalingType.YARN.value, "rope.scaling.factor": rope["factor"],
                "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
                "rope.scaling.yarn_beta_fast": rope.get("beta_fast"),
                "rope.scaling.yarn_beta_slow": rope.get("beta_slow"),
                "rope.scaling.yarn_attn_factor": rope.get("attention_factor"),
            }  # fmt: skip
        case "longrope":
            original = rope["original_max_position_embeddings"]
            scale = config.max_position_embeddings / original
            values |= {
                "rope.scaling.original_context_length": original,
                "rope.scaling.attn_factor": float(np.sqrt(1 + np.log(scale) / np.log(original))),
            }
    return values


def deepseek_settings(config: Any, is_kv_split: bool) -> dict[str, Any]:
    key, value = config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    values: dict[str, Any] = {
        "attention.kv_lora_rank": config.kv_lora_rank, "attention.q_lora_rank": config.q_lora_rank,
        "rope.dimension_count": config.qk_rope_head_dim, "leading_dense_block_count": config.first_k_dense_replace,
        "expert_feed_forward_length": config.moe_intermediate_size, "expert_shared_count": config.n_shared_experts,
        "expert_weights_scale": config.routed_scaling_factor, "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group, "vocab_size": config.vocab_size,
        "expert_weights_norm": config.norm_topk_prob or None,
    }  # fmt: skip
    if (scale := config.rope_parameters.get("mscale_all_dim")) is not None:
        values["rope.scaling.yarn_log_multiplier"] = 0.1 * scale
    if is_kv_split:
        values |= {
            "attention.head_count_kv": 1, "attention.key_length_mla": key, "attention.value_length_mla": value,
            "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
            "attention.value_length": config.kv_lora_rank,
        }  # fmt: skip
    else:
        values |= {"attention.key_length": key, "attention.value_length": value}
    return values
