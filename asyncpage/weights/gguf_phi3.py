"""The `phi3` architecture of GGUF in Hugging Face's words: Phi-3, Phi-3.5 mini, and Phi-4 where it is called so.

`gguf_checkpoint.py` asks it what a file's settings mean and where each tensor is; see `gguf_llama.py` for the errors.

INVARIANT: queries with keys and values, and gate with up, are one tensor each, as Hugging Face has them.

Source: the key names of the GGUF specification, and the meaning llama.cpp's loader gives them.
"""

from __future__ import annotations

from typing import Any

from asyncpage.formats.gguf import GGUFFile
from asyncpage.weights.gguf_decoder import Config, add_ends, add_norms, common_config, head_config
from asyncpage.weights.gguf_keys import Keys
from asyncpage.weights.gguf_rope import LONG_DIVISORS, SHORT_DIVISORS, longrope, original_context, rope_theta
from asyncpage.weights.gguf_source import Source
from asyncpage.weights.gguf_tensors import Tensors

_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def phi3_config(file: GGUFFile) -> dict[str, Any]:
    keys = Keys(file, "phi3")
    keys.refuse_others("attention.sliding_window")
    config = common_config(file, keys, "phi3", "Phi3ForCausalLM")
    config |= head_config(keys, config, is_whole_turned=False)
    head_dim = config["head_dim"]
    turned = keys.count("rope.dimension_count", default=head_dim, most=head_dim)
    if turned % 2:
        raise keys.error("rope.dimension_count", f"found {turned}, rotary embedding turns pairs")
    keys.need("rope.dimension_count_swa", turned)
    # The kind of scaling is said by the tensors that are there: the files have no key for it, or a true one.
    kind = keys.text("rope.scaling.type", ("none", "linear", "longrope"), default="linear")
    is_longrope = kind == "longrope" or LONG_DIVISORS in file.tensors or SHORT_DIVISORS in file.tensors
    if not is_longrope:
        keys.need("rope.scaling.attn_factor", 1.0)
    keys.need("rope.scaling.factor", 1.0)
    keys.need("rope.scale_linear", 1.0)
    return config | {
        "hidden_act": "silu",
        "sliding_window": keys.count("attention.sliding_window", default=0, least=0) or None,
        "original_max_position_embeddings": original_context(keys),
        "partial_rotary_factor": turned / head_dim,
        "rope_theta": rope_theta(keys),
        "rope_scaling": longrope(file, keys, turned // 2) if is_longrope else None,
    }


def phi3_sources(config: Config, file: GGUFFile) -> dict[str, Source]:
    tensors = Tensors(file, "phi3")
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q_rows = config["num_attention_heads"] * size
    all_rows = q_rows + 2 * config["num_key_value_heads"] * size
    add_ends(tensors, config)
    for layer in range(config["num_hidden_layers"]):
        add_norms(tensors, layer, hidden, _NORMS)
        here, there = f"model.layers.{layer}", f"blk.{layer}"
        tensors.add(f"{here}.self_attn.qkv_proj.weight", f"{there}.attn_qkv.weight", all_rows, hidden)
        tensors.add(f"{here}.self_attn.o_proj.weight", f"{there}.attn_output.weight", hidden, q_rows)
        tensors.add(f"{here}.mlp.gate_up_proj.weight", f"{there}.ffn_up.weight", 2 * inner, hidden)
        tensors.add(f"{here}.mlp.down_proj.weight", f"{there}.ffn_down.weight", hidden, inner)
    return tensors.finish(*((LONG_DIVISORS, SHORT_DIVISORS) if config["rope_scaling"] else ()))
