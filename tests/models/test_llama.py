"""Llama and Mistral against transformers, on tiny random models, through paged caches and both backends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from asyncpage.errors import ModelError
from asyncpage.models.registry import build_model
from tests.models.tiny import (
    Variants,
    check_mixed_steps,
    check_saved,
    ours,
    prompts,
    tiny,
    truth,
)

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
VARIANTS: Variants = {
    "plain": {},
    "tied head": {"tie_word_embeddings": True},
    "one key head": {"num_key_value_heads": 1},
    "as many key heads": {"num_key_value_heads": 6},
    "seven heads": {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 56, "head_dim": 10},
    "wider heads": {"head_dim": 24},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "another activation": {"hidden_act": "gelu"},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0}},
    "llama3": {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 16, "rope_theta": 500.0}},
    "yarn": {"rope_parameters": {**YARN, "original_max_position_embeddings": 32, "rope_theta": 500.0}},
}


def oracle(name: str) -> Any:
    return tiny(LlamaConfig, LlamaForCausalLM, VARIANTS[name])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_transformers_in_mixed_steps(name: str, backend: str, paged_model: Any) -> None:
    check_mixed_steps(oracle(name), paged_model, backend)


def test_a_saved_folder_gives_transformers_greedy_tokens(tmp_path: Path) -> None:
    check_saved(oracle("plain"), tmp_path)


def test_a_rows_logits_do_not_depend_on_its_neighbours(paged_model: Any) -> None:
    reference = oracle("plain")
    with torch.inference_mode():
        tokens = prompts(20, 31, 9, 27)
        alone = []
        for one in tokens:
            runner = paged_model(ours(reference), "cpu")
            sequence = runner.add(one)
            runner.step((sequence, len(one) - 1))
            runner.step((sequence, 1))
            alone.append(torch.stack(sequence.logits))
        runner = paged_model(ours(reference), "cpu")
        together = [runner.add(one) for one in tokens]
        runner.step(*((one, len(one.tokens) - 1) for one in together))
        runner.step(*((one, 1) for one in together))
    for sequence, logits in zip(together, alone, strict=True):
        assert (torch.stack(sequence.logits) - logits).abs().max() < 1e-4


def test_a_nan_embedding_stays_in_the_sequence_that_reads_it(paged_model: Any) -> None:
    reference = oracle("plain")
    clean, spoilt = prompts(30, 30)
    spoilt[20] = 7
    clean = [token if token != 7 else 8 for token in clean]
    expected = truth(reference, clean)
    with torch.inference_mode():
        reference.model.embed_tokens.weight[7] = torch.nan
        runner = paged_model(ours(reference), "cpu")
        good, bad = runner.add(clean), runner.add(spoilt)
        runner.step((good, 15), (bad, 25))
        runner.step((bad, 1), (good, 1))
        runner.step((bad, 2), (good, 12))
        while good.computed < 30:
            runner.step((bad, 1), (good, 1))
    assert (torch.stack(good.logits) - expected).abs().max() < 1e-4
    assert torch.stack(bad.logits)[20:].isnan().all()


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.05), ("float16", 0.006)])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_narrow_types_stay_as_near_to_float32_as_their_rounding(
    dtype: str, tolerance: float, backend: str, paged_model: Any
) -> None:
    reference = oracle("plain")
    tokens = prompts(40)[0]
    expected = truth(reference, tokens)
    with torch.inference_mode():
        model = ours(reference, getattr(torch, dtype))
        runner = paged_model(model, backend, kv_dtype=dtype)
        sequence = runner.add(tokens)
        runner.step((sequence, 30))
        runner.step((sequence, 9))
        logits = runner.step((sequence, 1))
    assert logits.dtype == torch.float32
    assert (torch.stack(sequence.logits) - expected).norm() / expected.norm() < tolerance


def test_a_float32_model_runs_over_a_narrow_cache(paged_model: Any) -> None:
    reference = oracle("plain")
    tokens = prompts(40)[0]
    expected = truth(reference, tokens)
    with torch.inference_mode():
        runner = paged_model(ours(reference), "cpu", kv_dtype="float16")
        sequence = runner.add(tokens)
        runner.step((sequence, 39))
        runner.step((sequence, 1))
    assert (torch.stack(sequence.logits) - expected).norm() / expected.norm() < 2e-3


def test_a_tied_head_is_the_embedding_itself() -> None:
    reference = oracle("tied head")
    weights = dict(reference.state_dict())
    weights.pop("lm_head.weight", None)
    config = {**reference.config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    model = build_model(config, weights.__getitem__, torch.float32, "cpu")
    hidden = torch.randn(2, 48)
    expected = hidden @ weights["model.embed_tokens.weight"].T
    assert (model.logits(hidden) - expected).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.1.self_attn.k_proj.weight", (16, 47)),
        ("model.embed_tokens.weight", (198, 48)),
        ("model.layers.2.mlp.down_proj.weight", (80, 48)),
        ("lm_head.weight", (199,)),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_refused_by_name(name: str, shape: tuple[int, ...]) -> None:
    reference = oracle("plain")
    weights = {**reference.state_dict(), name: torch.zeros(shape)}
    with pytest.raises(ModelError, match=rf"tensor {name} has shape \[{shape[0]}"):
        build_model(
            {**reference.config.to_dict(), "architectures": ["LlamaForCausalLM"]},
            weights.__getitem__,
            torch.float32,
            "cpu",
        )


def test_a_missing_tensor_is_refused_by_name() -> None:
    reference = oracle("plain")
    weights = dict(reference.state_dict())
    del weights["model.layers.0.mlp.up_proj.weight"]
    config = {**reference.config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    with pytest.raises(ModelError, match=r"tensor model\.layers\.0\.mlp\.up_proj\.weight is missing"):
        build_model(config, weights.__getitem__, torch.float32, "cpu")
