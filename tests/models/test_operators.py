"""The list of a model's operators against transformers' own count of weights and torch's of products, and by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from asyncpage.backends.contract import DeviceInfo
from asyncpage.backends.cpu import CpuBackend
from asyncpage.models.operators import Operator, OperatorList, list_operators
from asyncpage.models.registry import BUILT_IN, outline_model
from tests.models import test_deepseek_v2, test_gemma3, test_qwen2_moe
from tests.models.tiny import config_of
from tests.weights.tiny_models import MODELS

ALL = {
    **{name: make for name, make in MODELS.items() if name != "deepseek2"},
    "deepseek-groups": lambda: test_deepseek_v2.oracle("queries through a narrow row, experts in groups"),
    "qwen2moe": lambda: test_qwen2_moe.oracle(next(iter(test_qwen2_moe.VARIANTS))),
    "gemma3-seven": lambda: test_gemma3.oracle("plain"),
}
aten: Any = torch.ops.aten


def listed(
    config: dict[str, Any], dtype: torch.dtype = torch.float32, context: int = 20, kv_dtype: str = "float32"
) -> OperatorList:
    return list_operators(config, dtype, lambda name: "F32", context=context, kv_dtype=kv_dtype, block_size=4)


def by_key(found: OperatorList) -> dict[str, Operator]:
    return {operator.key: operator for block in found.blocks for operator in block.operators}


def flops(found: OperatorList, *, of_attention: bool) -> int:
    return sum(
        block.times * operator.flops
        for block in found.blocks
        for operator in block.operators
        if operator.key.endswith(".run") == of_attention
    )


def test_every_decoder_family_is_among_those_checked_here() -> None:
    checked = {config_of(make())["model_type"] for make in ALL.values()}
    assert set(BUILT_IN) - checked == {"bert", "ministral"}  # the encoder is below, the other has Mistral's class


@pytest.mark.parametrize("name", ALL)
def test_all_weights_are_listed_and_products_cost_what_torch_counts_in_transformers_model(name: str) -> None:
    oracle = ALL[name]().float().eval()
    oracle.set_experts_implementation("eager")
    found = listed(config_of(oracle), context=1)
    assert found.listed_elements == found.elements == oracle.num_parameters()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        oracle(torch.tensor([[5]]), use_cache=False)
    counts = counter.get_flop_counts()["Global"]
    # Linear maps are these two, there; batched products are attention and rotary positions.
    assert flops(found, of_attention=False) == counts.get(aten.mm, 0) + counts.get(aten.addmm, 0)


def test_a_tiny_llama_is_listed_as_by_hand() -> None:
    hidden, inner, vocabulary, heads, kv_heads, size, layers, context = 12, 20, 31, 3, 1, 4, 5, 7
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary, "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "max_position_embeddings": 32, "tie_word_embeddings": False,
    }  # fmt: skip
    found = listed(config, torch.bfloat16, context, "float32")
    assert [block.layers for block in found.blocks] == [(), (0, 1, 2, 3, 4), ()]
    qkv = (heads + 2 * kv_heads) * size
    rows = [
        # key, weights, products' flops, bytes of weights, of KV read and written
        ("embedding", [(vocabulary, hidden)], 0, 2 * hidden, 0, 0),
        ("ropes.0.angles", [], 0, 0, 0, 0),
        ("layers.0.before_attention", [(hidden,)], 0, 2 * hidden, 0, 0),
        ("layers.0.attention.qkv", [(qkv, hidden)], 2 * qkv * hidden, 2 * qkv * hidden, 0, 0),
        ("layers.0.attention", [], 0, 0, 0, 0),
        ("layers.0.attention.write_kv", [], 0, 0, 0, 4 * 2 * kv_heads * size),
        ("layers.0.attention.run", [], 4 * heads * size * context, 0, 4 * 2 * kv_heads * size * context, 0),
        ("layers.0.attention.output", [(hidden, hidden)], 2 * hidden**2, 2 * hidden**2, 0, 0),
        ("layers.0.advance", [], 0, 0, 0, 0),
        ("layers.0.before_feed_forward", [(hidden,)], 0, 2 * hidden, 0, 0),
        ("layers.0.feed_forward.gate_up", [(2 * inner, hidden)], 4 * inner * hidden, 4 * inner * hidden, 0, 0),
        ("layers.0.feed_forward", [], 0, 0, 0, 0),
        ("layers.0.feed_forward.down", [(hidden, inner)], 2 * inner * hidden, 2 * inner * hidden, 0, 0),
        ("norm", [(hidden,)], 0, 2 * hidden, 0, 0),
        ("head.linear", [(vocabulary, hidden)], 2 * vocabulary * hidden, 2 * vocabulary * hidden, 0, 0),
        ("head", [], 0, 0, 0, 0),  # logits become float32
    ]
    assert [
        (one.key, list(one.weights), one.flops, one.read_bytes, one.kv_read_bytes, one.kv_written_bytes)
        for one in by_key(found).values()
    ] == rows
    projection = by_key(found)["layers.0.attention.qkv"]
    assert (projection.taken, projection.given, projection.held_as) == ((1, hidden), (1, qkv), ("bfloat16",))
    assert projection.tensors == tuple(
        f"model.layers.{layer}.self_attn.{part}_proj.weight" for layer in range(layers) for part in "qkv"
    )
    assert found.elements == 2 * vocabulary * hidden + hidden + layers * (
        qkv * hidden + hidden**2 + 3 * inner * hidden + 2 * hidden
    )


def test_layers_are_listed_once_a_kind_and_a_window_bounds_what_is_read() -> None:
    found = listed(config_of(test_gemma3.oracle("plain")), context=20)
    assert [block.layers for block in found.blocks] == [(), (0, 1, 2, 3, 4, 6), (5,), ()]
    row = 2 * 2 * 8 * 4
    operators = by_key(found)
    assert operators["layers.0.attention.run"].kv_read_bytes == 9 * row
    assert operators["layers.5.attention.run"].kv_read_bytes == 20 * row
    assert operators["layers.0.attention.run"].note == "mha, 6 heads over 2, window 9"


def test_layers_stored_in_different_types_are_listed_apart() -> None:
    config = config_of(MODELS["smollm3"]())
    found = list_operators(
        config,
        torch.float32,
        lambda name: "Q6_K" if name == "model.layers.2.mlp.down_proj.weight" else "Q4_K",
        context=4,
        kv_dtype="float32",
        block_size=4,
    )
    # Its every fourth layer has no rotary positions.
    assert [block.layers for block in found.blocks] == [(), (0, 1, 4), (2,), (3,), ()]
    assert "layers.3.attention" not in by_key(found)


def test_experts_are_one_line_of_all_with_what_one_token_reads() -> None:
    oracle = MODELS["mixtral"]()
    inner, hidden = oracle.config.intermediate_size, oracle.config.hidden_size
    found = by_key(listed(config_of(oracle)))["layers.0.feed_forward.experts.experts.*.gate_up"]
    assert (found.parts, found.used, found.weights) == (5, 2, ((2 * inner, hidden),))
    assert found.elements == 5 * 2 * inner * hidden
    assert found.held_bytes == 4 * found.elements
    assert found.read_bytes == 4 * 2 * 2 * inner * hidden


@pytest.mark.parametrize("name", ["llama", "deepseek2-lite"])
def test_what_a_token_writes_is_what_the_backend_keeps_of_it(name: str) -> None:
    config = config_of(MODELS[name]())
    (spec, *_) = outline_model(config, torch.float32).model.specs("bfloat16", 4)
    layout = CpuBackend.kv_layout(spec, DeviceInfo("cpu", "x86_64"))
    found = by_key(listed(config, kv_dtype="bfloat16"))["layers.0.attention.write_kv"]
    assert found.kv_written_bytes * 4 == layout.block_bytes


def test_an_encoder_is_listed_for_a_whole_prompt() -> None:
    torch.manual_seed(1)
    oracle = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=50,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=32,
            attn_implementation="eager",
        ),
        add_pooling_layer=False,
    ).eval()
    found = listed({**oracle.config.to_dict(), "architectures": ["BertModel"]}, context=9)
    assert [block.layers for block in found.blocks] == [(), (0, 1, 2)]
    assert found.listed_elements == found.elements == oracle.num_parameters()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        oracle(torch.zeros(1, 9, dtype=torch.int64))
    assert flops(found, of_attention=False) == counter.get_total_flops()
    # Word and position of nine tokens; the vocabulary is not read.
    assert by_key(found)["encode"].read_bytes == 2 * 9 * 24 * 4
