"""The Llama shape against transformers, on tiny random models, through paged caches and both backends."""

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from asyncpage.errors import ModelError
from asyncpage.messages import LayerGroup
from asyncpage.models.registry import build_model

TINY = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.25,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "attn_implementation": "eager",
}

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
VARIANTS = {
    "plain": (LlamaConfig, {}),
    "tied head": (LlamaConfig, {"tie_word_embeddings": True}),
    "one key head": (LlamaConfig, {"num_key_value_heads": 1}),
    "as many key heads": (LlamaConfig, {"num_key_value_heads": 6}),
    "seven heads": (
        LlamaConfig,
        {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 56, "head_dim": 10},
    ),
    "wider heads": (LlamaConfig, {"head_dim": 24}),
    "biases": (LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "linear": (LlamaConfig, {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}}),
    "dynamic": (LlamaConfig, {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0}}),
    "llama3": (
        LlamaConfig,
        {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 16, "rope_theta": 500.0}},
    ),
    "yarn": (LlamaConfig, {"rope_parameters": {**YARN, "original_max_position_embeddings": 32, "rope_theta": 500.0}}),
    "mistral": (MistralConfig, {"sliding_window": None}),
    "window": (MistralConfig, {"sliding_window": 9}),
    "window beyond the context": (MistralConfig, {"sliding_window": 4096}),
    "windows and full": (
        MinistralConfig,
        {
            "head_dim": 8,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}
CLASSES = {LlamaConfig: LlamaForCausalLM, MistralConfig: MistralForCausalLM, MinistralConfig: MinistralForCausalLM}


def tiny(name, seed=0):
    """A random model of transformers and its config."""
    kind, changes = VARIANTS[name]
    torch.manual_seed(seed)
    config = kind(**{**TINY, **changes})
    model = CLASSES[kind](config).eval()
    for parameter_name, parameter in model.named_parameters():
        if "norm" in parameter_name or "bias" in parameter_name:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in parameter_name else 0.0, 0.3)
    return model


def ours(oracle, dtype=torch.float32):
    """Our model of the same weights, from config.json's words and tensors by name."""
    config = oracle.config.to_dict()
    return build_model(
        {**config, "architectures": [type(oracle).__name__]}, oracle.state_dict().__getitem__, dtype, "cpu"
    )


def prompts(*lengths, seed=3):
    random = torch.Generator().manual_seed(seed)
    return [torch.randint(0, TINY["vocab_size"], (length,), generator=random).tolist() for length in lengths]


def truth(oracle, tokens):
    with torch.inference_mode():
        return oracle(torch.tensor([tokens])).logits[0]


def check(oracle, sequences):
    for sequence in sequences:
        assert sequence.computed == len(sequence.tokens)
        error = (torch.stack(sequence.logits) - truth(oracle, sequence.tokens)).abs().max()
        assert error < 1e-4


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", VARIANTS)
def test_whole_prompts_chunks_and_decodes_in_mixed_steps_give_transformers_logits(name, backend, paged_model):
    oracle = tiny(name)
    with torch.inference_mode():
        runner = paged_model(ours(oracle), backend)
        whole, chunked, decoded, late = (runner.add(tokens) for tokens in prompts(41, 37, 24, 6))
        runner.step((whole, 33), (chunked, 11), (decoded, 16))
        runner.step((whole, 1), (chunked, 11), (decoded, 1))
        runner.step((decoded, 1), (late, 3), (chunked, 14), (whole, 1))
        runner.step((late, 1), (decoded, 1), (whole, 1), (chunked, 1))
        while whole.computed < 41:
            live = [one for one in (late, whole, decoded) if one.computed < len(one.tokens)]
            runner.step(*((one, 1) for one in live))
    check(oracle, [whole, chunked, decoded, late])


def test_a_rows_logits_do_not_depend_on_its_neighbours(paged_model):
    oracle = tiny("plain")
    with torch.inference_mode():
        tokens = prompts(20, 31, 9, 27)
        alone = []
        for one in tokens:
            runner = paged_model(ours(oracle), "cpu")
            sequence = runner.add(one)
            runner.step((sequence, len(one) - 1))
            runner.step((sequence, 1))
            alone.append(torch.stack(sequence.logits))
        runner = paged_model(ours(oracle), "cpu")
        together = [runner.add(one) for one in tokens]
        runner.step(*((one, len(one.tokens) - 1) for one in together))
        runner.step(*((one, 1) for one in together))
    for sequence, logits in zip(together, alone, strict=True):
        assert (torch.stack(sequence.logits) - logits).abs().max() < 1e-4


def test_a_nan_embedding_stays_in_the_sequence_that_reads_it(paged_model):
    oracle = tiny("plain")
    clean, spoilt = prompts(30, 30)
    spoilt[20] = 7
    clean = [token if token != 7 else 8 for token in clean]
    expected = truth(oracle, clean)
    with torch.inference_mode():
        oracle.model.embed_tokens.weight[7] = torch.nan
        runner = paged_model(ours(oracle), "cpu")
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
def test_narrow_types_stay_as_near_to_float32_as_their_rounding(dtype, tolerance, backend, paged_model):
    oracle = tiny("plain")
    tokens = prompts(40)[0]
    expected = truth(oracle, tokens)
    with torch.inference_mode():
        model = ours(oracle, getattr(torch, dtype))
        runner = paged_model(model, backend, kv_dtype=dtype)
        sequence = runner.add(tokens)
        runner.step((sequence, 30))
        runner.step((sequence, 9))
        logits = runner.step((sequence, 1))
    assert logits.dtype == torch.float32
    assert (torch.stack(sequence.logits) - expected).norm() / expected.norm() < tolerance


def test_a_float32_model_runs_over_a_narrow_cache(paged_model):
    oracle = tiny("plain")
    tokens = prompts(40)[0]
    expected = truth(oracle, tokens)
    with torch.inference_mode():
        runner = paged_model(ours(oracle), "cpu", kv_dtype="float16")
        sequence = runner.add(tokens)
        runner.step((sequence, 39))
        runner.step((sequence, 1))
    assert (torch.stack(sequence.logits) - expected).norm() / expected.norm() < 2e-3


def test_layers_are_grouped_by_window_full_attention_first():
    model = ours(tiny("windows and full"))
    assert model.groups == (LayerGroup("full", 0, 1), LayerGroup("window", 9, 2))
    assert model.layer_groups == (1, 0, 1)
    assert model.layer_slots == (0, 0, 1)
    assert [spec.window for spec in model.specs("float32", 16)] == [0, 9]
    assert ours(tiny("window beyond the context")).groups == (LayerGroup("full", 0, 3),)


def test_a_tied_head_is_the_embedding_itself():
    oracle = tiny("tied head")
    weights = dict(oracle.state_dict())
    weights.pop("lm_head.weight", None)
    config = {**oracle.config.to_dict(), "architectures": ["LlamaForCausalLM"]}
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
def test_a_tensor_of_the_wrong_shape_is_refused_by_name(name, shape):
    oracle = tiny("plain")
    weights = {**oracle.state_dict(), name: torch.zeros(shape)}
    with pytest.raises(ModelError, match=rf"tensor {name} has shape \[{shape[0]}"):
        build_model(
            {**oracle.config.to_dict(), "architectures": ["LlamaForCausalLM"]},
            weights.__getitem__,
            torch.float32,
            "cpu",
        )


def test_a_missing_tensor_is_refused_by_name():
    oracle = tiny("plain")
    weights = dict(oracle.state_dict())
    del weights["model.layers.0.mlp.up_proj.weight"]
    config = {**oracle.config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    with pytest.raises(ModelError, match=r"tensor model\.layers\.0\.mlp\.up_proj\.weight is missing"):
        build_model(config, weights.__getitem__, torch.float32, "cpu")
