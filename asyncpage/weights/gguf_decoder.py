"""What most decoders share in GGUF: the settings every one has, and the tensors of a plain layer.

The translations of architectures call it and add what is their own.

INVARIANT: a layer is counted only when the file has tensors enough for it, so no list outgrows the file.

Source: the key and tensor names of the GGUF specification, and the meaning llama.cpp's loader gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncpage.errors import FormatError
from asyncpage.formats.gguf import GGUFFile
from asyncpage.weights.gguf_keys import Keys
from asyncpage.weights.gguf_tensors import Tensors
from asyncpage.weights.settings import MAX_COUNT

Config = Mapping[str, Any]


def common_config(file: GGUFFile, keys: Keys, model_type: str, architecture: str) -> dict[str, Any]:
    """The settings that every decoder has but its heads, as a `config.json` would say them."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise FormatError(str(file.path), "tensor 'token_embd.weight'", "is missing")
    layers = keys.count("block_count")
    if layers > len(file.tensors):  # before a list is made that the file could make endless
        raise keys.error("block_count", f"{layers} layers need more tensors than the {len(file.tensors)} in the file")
    config: dict[str, Any] = {
        "model_type": model_type,
        "architectures": [architecture],
        "vocab_size": keys.count("vocab_size", default=embedding.shape[0]),
        "hidden_size": keys.count("embedding_length"),
        "intermediate_size": keys.count("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": keys.count("attention.head_count"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": keys.count("context_length"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    for here, there in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        tokenizer = Keys(file, "tokenizer.ggml")
        if tokenizer.get(f"{there}_token_id") is not None:
            config[f"{here}_token_id"] = tokenizer.count(f"{there}_token_id", least=0, most=MAX_COUNT)
    return config


def head_config(keys: Keys, config: Config, *, is_whole_turned: bool = True) -> dict[str, Any]:
    """`num_key_value_heads` and `head_dim`. `is_whole_turned`: rotary embedding must turn all of a head."""
    heads = config["num_attention_heads"]
    kv_heads = keys.count("attention.head_count_kv", default=heads)
    if heads % kv_heads:
        raise keys.error("attention.head_count_kv", f"{kv_heads} do not divide the {heads} attention heads")
    head_dim = keys.count("attention.key_length", default=config["hidden_size"] // heads)
    if head_dim % 2:
        raise keys.error("attention.key_length", f"found {head_dim}, rotary embedding needs an even head size")
    equal = ["attention.value_length", "attention.key_length_swa", "attention.value_length_swa"]
    if is_whole_turned:
        equal += ["rope.dimension_count", "rope.dimension_count_swa"]
    for name in equal:
        if keys.count(name, default=head_dim) != head_dim:
            raise keys.error(name, f"found {keys.get(name)!r}, only the head size {head_dim} is supported")
    return {"num_key_value_heads": kv_heads, "head_dim": head_dim}


def has_attention_biases(file: GGUFFile) -> bool:
    """Whether the first layer has any; the others, and its other products, then must have them too."""
    return any(f"blk.0.attn_{name}.bias" in file.tensors for name in ("q", "qkv", "output"))


def add_ends(tensors: Tensors, config: Config, *, excess: float = 0.0) -> None:
    """Embedding, last norm and, where it is not the embedding, the head. `excess`: see `Source`, for the norm."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    tensors.add("model.embed_tokens.weight", "token_embd.weight", vocab, hidden)
    tensors.add("model.norm.weight", "output_norm.weight", hidden, excess=excess)
    if not config["tie_word_embeddings"]:
        tensors.add("lm_head.weight", "output.weight", vocab, hidden)


def add_norms(tensors: Tensors, layer: int, width: int, norms: Mapping[str, str], *, excess: float = 0.0) -> None:
    """`norms`: Hugging Face's name -> the file's, of the norms of a layer that are `width` items wide."""
    for here, there in norms.items():
        tensors.add(f"model.layers.{layer}.{here}.weight", f"blk.{layer}.{there}.weight", width, excess=excess)


def add_attention(
    tensors: Tensors,
    config: Config,
    layer: int,
    *,
    is_interleaved: bool = False,
    is_qkv_biased: bool = False,
    is_output_biased: bool = False,
) -> None:
    """The four products of `self_attn`, queries to values each by itself or as one tensor in the file.

    `is_interleaved`: a head's rotary pairs lie side by side in the file.
    """
    here, there = f"model.layers.{layer}.self_attn", f"blk.{layer}"
    hidden, size = config["hidden_size"], config["head_dim"]
    q_rows, kv_rows = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    head_rows = size if is_interleaved else 0
    parts = (("q", 0, q_rows, head_rows), ("k", q_rows, kv_rows, head_rows), ("v", q_rows + kv_rows, kv_rows, 0))
    all_rows = q_rows + 2 * kv_rows
    for kind, width in (("weight", (hidden,)), ("bias", ())):
        if kind == "bias" and not is_qkv_biased:
            continue
        is_fused = tensors.has(f"{there}.attn_qkv.{kind}")
        for part, start, rows, head in parts:
            name = f"{here}.{part}_proj.{kind}"
            if is_fused:
                tensors.add_rows(name, f"{there}.attn_qkv.{kind}", (all_rows, *width), start, rows, head)
            else:
                tensors.add(name, f"{there}.attn_{part}.{kind}", rows, *width, head_rows=head)
    tensors.add(f"{here}.o_proj.weight", f"{there}.attn_output.weight", hidden, q_rows)
    if is_output_biased:
        tensors.add(f"{here}.o_proj.bias", f"{there}.attn_output.bias", hidden)


def add_feed_forward(
    tensors: Tensors, here: str, there: str, hidden: int, inner: int, *, suffix: str = "", is_biased: bool = False
) -> None:
    """Gate, up and down of `here` (`model.layers.0.mlp`): in block `there`, `ffn_gate` and so on, with `suffix`."""
    for name, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
        tensors.add(f"{here}.{name}_proj.weight", f"{there}.ffn_{name}{suffix}.weight", rows, columns)
        if is_biased:
            tensors.add(f"{here}.{name}_proj.bias", f"{there}.ffn_{name}{suffix}.bias", rows)
