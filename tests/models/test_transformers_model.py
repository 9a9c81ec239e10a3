"""Models that have no family here, through the transformers library, against that library with its own attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from asyncpage.messages import LayerGroup
from asyncpage.models.registry import build_model, find_family, outline_model
from asyncpage.models.transformers_family import LIBRARY
from asyncpage.weights.checkpoint import open_checkpoint
from tests.models.tiny import Variants, check_mixed_steps, check_saved, config_of, ours, prompts, tiny, truth
from tests.weights import tiny_models
from tests.weights.quantised_models import fp8, write_quantised

MODELS: Variants = {
    # Logits, scores, embeddings and residuals are scaled.
    "Granite": {
        "logits_scaling": 3.0,
        "residual_multiplier": 0.7,
        "attention_multiplier": 0.2,
        "embedding_multiplier": 5.0,
    },
    # Attention beside the feed-forward, layer norms, rotations of neighbours, windows in three of four layers.
    "Cohere2": {"num_hidden_layers": 4, "sliding_window": 9, "logit_scale": 0.3, "head_dim": 8},
    # Norms without weights, values that are cut off.
    "Olmo": {"clip_qkv": 0.9},
    # Queries, keys and values in one product, and a part of each head that turns.
    "GPTNeoX": {"num_key_value_heads": None, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    # Learned positions, weights the other way round.
    "GPT2": {"num_key_value_heads": None, "n_inner": 80},
    # Learned positions behind an offset; the layers are not its base as a whole.
    "OPT": {"ffn_dim": 80, "word_embed_proj_dim": 48, "num_key_value_heads": None},
    # A window in all layers, biases, a feed-forward without a gate.
    "Starcoder2": {"sliding_window": 9},
    # Experts, sinks and windows.
    "GptOss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 9,
        "head_dim": 8,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 32,
            "rope_theta": 10000.0,
        },
    },
    # Keys and values out of one latent vector, values narrower than keys, experts and shared ones.
    "DeepseekV3": {
        "num_key_value_heads": 6,
        "q_lora_rank": 20,
        "kv_lora_rank": 18,
        "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 4,
        "v_head_dim": 9,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
    # Experts of which files have one tensor each, and the library one for all.
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
}


def oracle(name: str, **changes: Any) -> Any:
    config = getattr(transformers, f"{name}Config")
    return tiny(config, transformers.MODEL_FOR_CAUSAL_LM_MAPPING[config], MODELS[name] | changes)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_librarys_in_mixed_steps(name: str, paged_model: Any) -> None:
    check_mixed_steps(oracle(name), paged_model, "reference" if name == "GptOss" else "cpu")


@pytest.mark.parametrize("name", ["Cohere2", "GPT2", "GPTNeoX", "Olmoe"])
def test_a_saved_folder_gives_the_librarys_greedy_tokens(name: str, tmp_path: Path) -> None:
    check_saved(oracle(name), tmp_path)


def test_weights_that_serve_twice_are_counted_and_held_once(paged_model: Any) -> None:
    tied = oracle("Granite", tie_word_embeddings=True)
    check_mixed_steps(tied, paged_model, "cpu")
    model: Any = ours(tied)
    held = {parameter.data_ptr() for parameter in model._module.parameters()}
    assert len(held) == len(list(tied.parameters()))


def test_layers_are_grouped_by_the_masks_they_ask_for() -> None:
    model = ours(oracle("Cohere2"))
    assert model.layer_groups == (1, 2, 3, 0)
    assert model.groups == (LayerGroup("full", 0, 1), *[LayerGroup("window", 9, 1)] * 3)
    assert ours(oracle("Starcoder2", sliding_window=128)).groups == (LayerGroup("full", 0, 3),)


def test_specs_and_scales_are_what_the_layers_ask_for() -> None:
    granite = ours(oracle("Granite"))
    (spec,) = granite.specs("float16", 32)
    assert (spec.q_heads, spec.kv_heads, spec.head_dim, spec.v_head_dim) == (6, 2, 8, 8)
    assert (spec.dtype, spec.kv_dtype, spec.block_size) == ("float32", "float16", 32)
    assert [params.scale for params in granite.layer_params] == [0.2] * 3
    original = oracle("GptOss")
    sinks = [params.sinks for params in ours(original).layer_params]
    assert all(spec.sinks for spec in ours(original).specs("float32", 16))
    for found, layer in zip(sinks, original.model.layers, strict=True):
        assert found is not None
        assert torch.equal(found, layer.self_attn.sinks)


def test_the_context_ends_where_turns_would_depend_on_the_longest_of_a_batch() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
    config = config_of(oracle("Granite")) | {"rope_parameters": rope | {"original_max_position_embeddings": 48}}
    assert outline_model(config, torch.float32).model.max_model_len == 48


def test_it_says_through_what_it_runs() -> None:
    assert find_family(config_of(oracle("Granite"))).name == f"runs through {LIBRARY}"
    assert outline_model(config_of(oracle("Granite")), torch.float32).family == f"runs through {LIBRARY}"


def test_a_quantised_folder_is_dequantised(tmp_path: Path, paged_model: Any) -> None:
    settings = {"quant_method": "fp8", "weight_block_size": [16, 24]}
    pack = fp8((16, 24), name="weight_scale_inv")
    original: Any = tiny_models.tiny("Granite")
    written = write_quantised(original, tmp_path, pack, settings)
    checkpoint = open_checkpoint(tmp_path)
    model = build_model(
        checkpoint.config,
        lambda name: checkpoint.tensor(name, torch.float32),
        torch.float32,
        "cpu",
        names=checkpoint.names,
    )
    checkpoint.close()
    with torch.inference_mode():
        runner = paged_model(model, "cpu")
        row = runner.add([5, 80, 33, 12, 7, 61, 20, 9, 44])
        runner.step((row, 6))
        runner.step((row, 3))
    original.load_state_dict(written.truth)
    expected = truth(original.eval(), row.tokens)
    assert (torch.stack(row.logits) - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("name", ["Granite", "Olmoe"])
def test_bfloat16_stays_as_near_to_float32_as_the_librarys_own(name: str, paged_model: Any) -> None:
    exact, narrow = oracle(name), oracle(name).bfloat16()
    (tokens,) = prompts(40)
    with torch.inference_mode():
        runner = paged_model(ours(exact, torch.bfloat16), "cpu", kv_dtype="bfloat16")
        sequence = runner.add(tokens)
        runner.step((sequence, 39))
        runner.step((sequence, 1))
    expected = truth(exact, tokens)
    allowed = (truth(narrow, tokens).float() - expected).norm()
    assert (torch.stack(sequence.logits) - expected).norm() < 1.5 * allowed
