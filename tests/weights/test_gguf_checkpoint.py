"""A GGUF checkpoint gives back the tensors and settings of the Hugging Face model it was made from."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from transformers import LlamaForCausalLM

from asyncpage.errors import FormatError, ModelError
from asyncpage.formats.gguf import GGUFFile
from asyncpage.weights.checkpoint import open_checkpoint
from asyncpage.weights.gguf_source import CHUNK_VALUES

WriteGGUF = Callable[..., Path]
Llama = Callable[..., LlamaForCausalLM]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 6},
        {"attention_bias": True, "mlp_bias": True},
    ],
    ids=["grouped", "tied", "ungrouped", "biased"],
)
def test_every_tensor_equals_the_original(llama: Llama, write_gguf: WriteGGUF, changes: dict[str, Any]) -> None:
    model = llama(**changes)
    checkpoint = open_checkpoint(write_gguf(model))
    original = dict(model.named_parameters())
    assert set(checkpoint.names) == set(original)
    for name, parameter in original.items():
        assert torch.equal(checkpoint.tensor(name, torch.float32), parameter), name
    checkpoint.close()


@pytest.mark.parametrize("stored", [np.float32, np.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_come_in_the_type_asked_for(
    llama: Llama, write_gguf: WriteGGUF, stored: type, dtype: torch.dtype
) -> None:
    model = llama()
    checkpoint = open_checkpoint(write_gguf(model, dtype=stored))
    for name, parameter in model.named_parameters():
        rows = parameter if parameter.ndim == 1 or stored is np.float32 else parameter.half().float()
        assert torch.equal(checkpoint.tensor(name, dtype), rows.to(dtype)), name


def test_a_tensor_larger_than_a_chunk_is_whole(llama: Llama, write_gguf: WriteGGUF) -> None:
    # Five heads of half a chunk each: a cut must fall between heads.
    model = llama(hidden_size=65, num_attention_heads=5, num_key_value_heads=1, head_dim=CHUNK_VALUES // 128)
    checkpoint = open_checkpoint(write_gguf(model))
    original = model.model.layers[0].self_attn.q_proj.weight
    assert original.numel() > 2 * CHUNK_VALUES
    assert torch.equal(checkpoint.tensor("model.layers.0.self_attn.q_proj.weight", torch.float32), original)
    assert torch.equal(
        checkpoint.tensor("model.layers.0.self_attn.o_proj.weight", torch.bfloat16),
        model.model.layers[0].self_attn.o_proj.weight.bfloat16(),
    )


def test_settings_are_those_of_the_original(llama: Llama, write_gguf: WriteGGUF) -> None:
    config = open_checkpoint(write_gguf(llama())).config
    config.pop("sliding_window", None)
    assert config.pop("rms_norm_eps") == pytest.approx(1e-5)
    assert config == {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 97, "hidden_size": 36,
        "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
        "head_dim": 8, "hidden_act": "silu", "max_position_embeddings": 128, "rope_theta": 500000.0,
        "rope_scaling": None, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip


def test_what_a_file_may_leave_out_is_derived(llama: Llama, write_gguf: WriteGGUF) -> None:
    left_out = dict.fromkeys(
        ("attention.key_length", "attention.value_length", "rope.dimension_count", "vocab_size", "rope.freq_base")
    )
    model = llama(num_attention_heads=4, num_key_value_heads=4, hidden_size=32)
    config = open_checkpoint(write_gguf(model, keys=left_out | {"attention.head_count_kv": None})).config
    assert (config["head_dim"], config["vocab_size"], config["num_key_value_heads"]) == (8, 97, 4)
    assert config["rope_theta"] == 10000.0


def test_one_count_a_layer_is_read_when_all_are_equal(llama: Llama, write_gguf: WriteGGUF) -> None:
    assert (
        open_checkpoint(write_gguf(llama(), keys={"attention.head_count_kv": [2, 2]})).config["num_key_value_heads"]
        == 2
    )
    with pytest.raises(FormatError, match=r"llama\.attention\.head_count_kv: differs from layer to layer"):
        open_checkpoint(write_gguf(llama(), keys={"attention.head_count_kv": [2, 1]}))


def test_a_llama_with_a_sliding_window_is_a_mistral(llama: Llama, write_gguf: WriteGGUF) -> None:
    config = open_checkpoint(write_gguf(llama(), keys={"attention.sliding_window": 64})).config
    assert (config["model_type"], config["architectures"]) == ("mistral", ["MistralForCausalLM"])
    assert config["sliding_window"] == 64


FREQUENCIES = np.array([1.0, 1.0, 2.5, 8.0], np.float32)


@pytest.mark.parametrize(
    ("keys", "add", "expected"),
    [
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}, {}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 2.0}, {}, {"rope_type": "linear", "factor": 2.0}),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32},
            {},
            {
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
                "beta_fast": 32.0, "beta_slow": 1.0,
            },
        ),
        (
            {},
            {"rope_freqs.weight": FREQUENCIES},
            {
                "rope_type": "longrope", "long_factor": [1.0, 1.0, 2.5, 8.0], "short_factor": [1.0, 1.0, 2.5, 8.0],
                "attention_factor": 1.0, "original_max_position_embeddings": 128,
            },
        ),
        ({}, {"rope_freqs.weight": np.ones(4, np.float32)}, None),
        (
            {
                "rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.5,
                "rope.scaling.original_context_length": 64,
            },
            {"rope_factors_long.weight": FREQUENCIES, "rope_factors_short.weight": np.ones(4, np.float32)},
            {
                "rope_type": "longrope", "long_factor": [1.0, 1.0, 2.5, 8.0], "short_factor": [1.0] * 4,
                "attention_factor": 1.5, "original_max_position_embeddings": 64,
            },
        ),
    ],
)  # fmt: skip
def test_rotary_scaling_is_translated(
    llama: Llama,
    write_gguf: WriteGGUF,
    keys: dict[str, Any],
    add: dict[str, np.ndarray],
    expected: dict[str, Any] | None,
) -> None:
    checkpoint = open_checkpoint(write_gguf(llama(), keys=keys, add=add))
    assert checkpoint.config["rope_scaling"] == expected
    assert not any("rope" in name for name in checkpoint.names)


def test_a_yarn_attention_factor_includes_the_paper_s(llama: Llama, write_gguf: WriteGGUF) -> None:
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 2.0}
    scaling = open_checkpoint(write_gguf(llama(), keys=keys)).config["rope_scaling"]
    assert scaling["attention_factor"] == pytest.approx(2.0 * (0.1 * np.log(4.0) + 1.0))


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"expert_count": 8}, "llama.expert_used_count"),
        ({"logit_scale": 0.5}, "llama.logit_scale"),
        ({"attention.causal": False}, "llama.attention.causal"),
        ({"attn_logit_softcapping": 50.0}, "llama.attn_logit_softcapping"),
        ({"rope.scaling.type": "spiral"}, "llama.rope.scaling.type"),
        ({"rope.dimension_count": 4}, "llama.rope.dimension_count"),
        ({"attention.value_length": 16}, "llama.attention.value_length"),
        ({"attention.key_length": 7, "attention.value_length": 7, "rope.dimension_count": 7}, "attention.key_length"),
        ({"rope.scaling.factor": -1.0}, "llama.rope.scaling.factor"),
        ({"rope.freq_base": float("nan")}, "llama.rope.freq_base"),
        ({"attention.layer_norm_rms_epsilon": None}, "llama.attention.layer_norm_rms_epsilon"),
        ({"attention.layer_norm_rms_epsilon": "small"}, "llama.attention.layer_norm_rms_epsilon"),
        ({"embedding_length": None}, "llama.embedding_length"),
        ({"embedding_length": 0}, "llama.embedding_length"),
        ({"attention.head_count": 0}, "llama.attention.head_count"),
        ({"attention.head_count": True}, "llama.attention.head_count"),
        ({"attention.head_count_kv": 4}, "llama.attention.head_count_kv: 4 do not divide the 6 attention heads"),
        ({"context_length": 2**31}, "llama.context_length"),
        ({"block_count": 4_000_000}, "llama.block_count"),
        ({"block_count": 2**32 - 1}, "llama.block_count"),
        ({"block_count": 3}, "blk.2.attn_norm.weight"),
        ({"block_count": 1}, "is not part of a llama model"),
        ({"feed_forward_length": 57}, "blk.0.ffn_gate.weight"),
    ],
)
def test_settings_that_cannot_be_right_or_would_be_ignored_are_refused(
    llama: Llama, write_gguf: WriteGGUF, keys: dict[str, Any], where: str
) -> None:
    path = write_gguf(llama(), keys=keys)
    with pytest.raises(FormatError) as caught:
        open_checkpoint(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert where in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"drop": ("blk.1.attn_k.weight",)}, "tensor 'blk.1.attn_k.weight': is missing"),
        ({"add": {"blk.0.attn_qkv.weight": np.ones((4, 4), np.float32)}}, "attn_qkv.weight': has shape (4, 4)"),
        ({"add": {"blk.0.ffn_up.weight": np.ones((4, 4), np.float32)}}, "has shape (4, 4)"),
        ({"add": {"blk.0.attn_q.bias": np.ones(48, np.float32)}}, "tensor 'blk.0.attn_k.bias': is missing"),
        ({"add": {"rope_freqs.weight": np.ones(3, np.float32)}}, "has shape (3,), (4,) is needed"),
        ({"add": {"rope_freqs.weight": np.zeros(4, np.float32)}}, "factors that are not positive"),
        ({"keys": {"rope.scaling.type": "longrope"}}, "tensor 'rope_factors_long.weight': is missing"),
        (
            {"add": {"rope_freqs.weight": FREQUENCIES}, "keys": {"rope.scaling.factor": 2.0}},
            "beside rope_freqs is not supported",
        ),
    ],
)
def test_tensors_that_are_missing_or_strange_are_refused_by_name(
    llama: Llama, write_gguf: WriteGGUF, change: dict[str, Any], said: str
) -> None:
    path = write_gguf(llama(), **change)
    with pytest.raises(FormatError) as caught:
        open_checkpoint(path)
    assert said in str(caught.value)


def test_an_unknown_architecture_is_refused_with_the_known_ones(llama: Llama, write_gguf: WriteGGUF) -> None:
    with pytest.raises(
        ModelError, match=r"GGUF architecture 'mamba' is not supported; supported: .*gemma3, llama, olmo2"
    ):
        open_checkpoint(write_gguf(llama(), architecture="mamba"))


def test_a_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "part.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(FormatError, match=r"split\.count: the model is split into 3 files; join them"):
        open_checkpoint(tmp_path / "part.gguf")


def test_a_tensor_that_is_not_there_is_named(llama: Llama, write_gguf: WriteGGUF) -> None:
    with pytest.raises(ModelError, match=r"has no tensor that would be 'model\.nothing'"):
        open_checkpoint(write_gguf(llama())).tensor("model.nothing", torch.float32)


def test_the_demo_model_is_read_in_the_original_s_order(demo_model: Path) -> None:
    checkpoint = open_checkpoint(demo_model)
    config = checkpoint.config
    assert {name: config[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")} == {
        "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
    }  # fmt: skip
    assert (config["num_key_value_heads"], config["head_dim"], config["vocab_size"]) == (3, 64, 49152)
    assert (config["rope_theta"], config["rope_scaling"], config["tie_word_embeddings"]) == (100000.0, None, True)
    assert len(checkpoint.names) == 272
    file = GGUFFile(demo_model)
    info = file.tensors["blk.7.attn_k.weight"]
    stored = quants.dequantize(np.array(file.raw(info.name)).reshape(192, -1), GGMLQuantizationType[info.dtype])
    rows = checkpoint.tensor("model.layers.7.self_attn.k_proj.weight", torch.float32).numpy()
    for head in range(3):
        for pair in range(32):  # pair j of a head: rows j and j + 32 here, 2 j and 2 j + 1 in the file
            assert np.array_equal(rows[head * 64 + pair], stored[head * 64 + 2 * pair])
            assert np.array_equal(rows[head * 64 + 32 + pair], stored[head * 64 + 2 * pair + 1])
    checkpoint.close()
    file.close()


def test_the_largest_tensor_needs_little_memory_beside_itself(demo_model: Path) -> None:
    checkpoint = open_checkpoint(demo_model)
    tracemalloc.start()
    checkpoint.tensor("model.embed_tokens.weight", torch.bfloat16)
    _, peak = tracemalloc.get_traced_memory()  # sees numpy's arrays, not the tensor that is returned
    tracemalloc.stop()
    assert peak < 4 * CHUNK_VALUES + 4_000_000  # whole, it would be 113 MB in float32
    checkpoint.close()
