"""The `deepseek2` architecture of GGUF in Hugging Face's words: DeepSeek V2's latent attention and shared experts.

`gguf_checkpoint.py` asks it what a file's settings mean and where each tensor is; see `gguf_llama.py` for the errors.

INVARIANT: a setting that changes the model's arithmetic and that is not translated here is refused, never ignored;
the sigmoid gates of DeepSeek V3, which has the same architecture in GGUF, are one.

Source: the key names of the GGUF specification, and the meaning llama.cpp's loader gives them.
"""

from __future__ import annotations

from typing import Any

from asyncpage.formats.gguf import GGUFFile
from asyncpage.weights.gguf_decoder import Config, add_ends, add_feed_forward, add_norms, common_config
from asyncpage.weights.gguf_experts import add_experts, expert_counts
from asyncpage.weights.gguf_keys import Keys
from asyncpage.weights.gguf_rope import rope_scaling, rope_theta
from asyncpage.weights.gguf_source import Piece, Source
from asyncpage.weights.gguf_tensors import Tensors

_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_PRODUCTS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"


def deepseek2_config(file: GGUFFile) -> dict[str, Any]:
    keys = Keys(file, "deepseek2")
    keys.refuse_others(
        "expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_count",
        "expert_group_count", "expert_group_used_count", "expert_weights_scale", "leading_dense_block_count",
        "attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla",
        _LOG_MULTIPLIER,
    )  # fmt: skip
    config = common_config(file, keys, "deepseek_v2", "DeepseekV2ForCausalLM")
    layers = config["num_hidden_layers"]
    experts, used = expert_counts(keys, layers)
    return config | _latent_sizes(keys, config["num_attention_heads"]) | _groups(keys, experts) | {
        # The file says one, for every head reads the same latent, or as many as query heads.
        "num_key_value_heads": config["num_attention_heads"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "n_routed_experts": experts,
        "num_experts_per_tok": used,
        "n_shared_experts": keys.count("expert_shared_count"),
        "moe_intermediate_size": keys.count("expert_feed_forward_length"),
        "first_k_dense_replace": keys.count("leading_dense_block_count", default=0, least=0, most=layers),
        "norm_topk_prob": keys.flag("expert_weights_norm", default=False),
        "routed_scaling_factor": _routed_scale(keys),
        "rope_theta": rope_theta(keys),
        "rope_scaling": _rope_scaling(keys),
    }  # fmt: skip


def deepseek2_sources(config: Config, file: GGUFFile) -> dict[str, Source]:
    tensors = Tensors(file, "deepseek2")
    hidden, experts = config["hidden_size"], config["n_routed_experts"]
    inner, shared = config["moe_intermediate_size"], config["n_shared_experts"]
    add_ends(tensors, config)
    for layer in range(config["num_hidden_layers"]):
        add_norms(tensors, layer, hidden, _NORMS)
        _add_latent_attention(tensors, config, layer)
        here, there = f"model.layers.{layer}.mlp", f"blk.{layer}"
        if layer < config["first_k_dense_replace"]:
            add_feed_forward(tensors, here, there, hidden, config["intermediate_size"])
            continue
        tensors.add(f"{here}.gate.weight", f"{there}.ffn_gate_inp.weight", experts, hidden)
        add_feed_forward(tensors, f"{here}.shared_experts", there, hidden, shared * inner, suffix="_shexp")
        add_experts(
            tensors, f"{here}.experts", there, experts=experts, hidden=hidden, inner=inner, names=_PRODUCTS
        )  # fmt: skip
    return tensors.finish()


def _latent_sizes(keys: Keys, heads: int) -> dict[str, Any]:
    """Ranks and head sizes: of the attention itself in newer files, beside those of its latent form in a few keys."""
    rank, turned = keys.count("attention.kv_lora_rank"), keys.count("rope.dimension_count")
    is_split = keys.get("attention.key_length_mla") is not None
    suffix = "_mla" if is_split else ""
    key, value = keys.count(f"attention.key_length{suffix}"), keys.count(f"attention.value_length{suffix}")
    if turned % 2 or turned >= key:
        raise keys.error("rope.dimension_count", f"found {turned}, an even part of the key length {key} is needed")
    keys.need("rope.dimension_count_swa", turned)
    if is_split:
        keys.need("attention.key_length", rank + turned)
        keys.need("attention.value_length", rank)
    keys.need("attention.head_count_kv", *((1,) if is_split else (1, heads)))
    return {
        "q_lora_rank": keys.count("attention.q_lora_rank", default=0, least=0) or None,
        "kv_lora_rank": rank,
        "qk_nope_head_dim": key - turned,
        "qk_rope_head_dim": turned,
        "v_head_dim": value,
    }


def _groups(keys: Keys, experts: int) -> dict[str, Any]:
    """How a token finds its experts: among all, or among those of a few groups."""
    groups = keys.count("expert_group_count", default=0, least=0)
    if groups <= 1:
        return {"topk_method": "greedy", "n_group": None, "topk_group": None}
    if experts % groups:
        raise keys.error("expert_group_count", f"found {groups}, which do not divide the {experts} experts")
    used = keys.count("expert_group_used_count", most=groups)
    return {"topk_method": "group_limited_greedy", "n_group": groups, "topk_group": used}


def _routed_scale(keys: Keys) -> float:
    return 1.0 if keys.get("expert_weights_scale") == 0.0 else keys.number("expert_weights_scale", default=1.0)


def _rope_scaling(keys: Keys) -> dict[str, Any] | None:
    scaling = rope_scaling(keys)
    if scaling is not None and scaling["rope_type"] == "yarn":
        # The file has a tenth of it. The other one, `mscale`, is the same in every published model.
        scale = keys.number(_LOG_MULTIPLIER) / 0.1
        scaling |= {"mscale": scale, "mscale_all_dim": scale}
    else:
        keys.need(_LOG_MULTIPLIER, 0.0)
    return scaling


def _add_latent_attention(tensors: Tensors, config: Config, layer: int) -> None:
    here, there = f"model.layers.{layer}.self_attn", f"blk.{layer}"
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    plain, turned, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    q_rows = heads * (plain + turned)
    if q_rank := config["q_lora_rank"]:
        tensors.add(f"{here}.q_a_proj.weight", f"{there}.attn_q_a.weight", q_rank, hidden)
        tensors.add(f"{here}.q_a_layernorm.weight", f"{there}.attn_q_a_norm.weight", q_rank)
        tensors.add(f"{here}.q_b_proj.weight", f"{there}.attn_q_b.weight", q_rows, q_rank)
    else:
        tensors.add(f"{here}.q_proj.weight", f"{there}.attn_q.weight", q_rows, hidden)
    tensors.add(f"{here}.kv_a_proj_with_mqa.weight", f"{there}.attn_kv_a_mqa.weight", rank + turned, hidden)
    tensors.add(f"{here}.kv_a_layernorm.weight", f"{there}.attn_kv_a_norm.weight", rank)
    if tensors.has(f"{there}.attn_kv_b.weight"):
        tensors.add(f"{here}.kv_b_proj.weight", f"{there}.attn_kv_b.weight", heads * (plain + value), rank)
    else:
        keys = Piece(f"{there}.attn_k_b.weight", plain, is_transposed=True)
        tensors.add_groups(f"{here}.kv_b_proj.weight", rank, heads, keys, Piece(f"{there}.attn_v_b.weight", value))
    tensors.add(f"{here}.o_proj.weight", f"{there}.attn_output.weight", hidden, heads * value)
