"""What `adapter_config.json` says, as PEFT reads it, and what is refused by name."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key

from asyncpage.adapters.settings import AdapterSettings
from asyncpage.errors import FormatError
from tests.adapters.adapter_folder import CONFIG

MODULES = [
    f"model.layers.{layer}.{part}"
    for layer in (0, 1, 11)
    for part in ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "mlp.gate_up_proj", "mlp.down_proj")
]
NAMES = st.sampled_from(
    ["q_proj", "k_proj", "up_proj", "proj", "mlp", "self_attn.q_proj", "layers.1.self_attn.q_proj", "gate_up_proj",
     "model.layers.0.mlp.down_proj", "layers.11.mlp.up_proj", "1.mlp.up_proj", "lm_head"]
)  # fmt: skip
PATTERNS = NAMES | st.sampled_from(
    ["^model.layers.1.mlp.up_proj", "^layers.1.mlp.up_proj", r"model\.layers\.0\.mlp\.up_proj"]
)


def parsed(**changes: Any) -> AdapterSettings:
    return AdapterSettings.parse({**CONFIG, **changes}, "adapter_config.json")


def test_what_peft_writes_for_a_plain_adapter_is_read() -> None:
    config = LoraConfig(r=5, lora_alpha=20, target_modules=["q_proj", "mlp.up_proj"]).to_dict()
    config["target_modules"] = sorted(config["target_modules"])
    found = AdapterSettings.parse(json.loads(json.dumps(config)), "adapter_config.json")
    assert (found.rank, found.alpha, found.targets) == (5, 20.0, {"q_proj", "mlp.up_proj"})
    assert found.scale_of("model.layers.0.self_attn.q_proj") == 4.0


@settings(max_examples=150, deadline=None)
@given(
    st.lists(NAMES, min_size=1, max_size=3, unique=True),
    st.lists(NAMES, max_size=2, unique=True),
    st.none() | st.integers(0, 12) | st.lists(st.integers(0, 12), max_size=3),
)
def test_the_modules_that_are_meant_are_those_that_peft_means(
    targets: list[str], excluded: list[str], layers: int | list[int] | None
) -> None:
    ours = parsed(target_modules=targets, exclude_modules=excluded, layers_to_transform=layers)
    theirs = LoraConfig(target_modules=targets, exclude_modules=excluded or None, layers_to_transform=layers)
    for module in MODULES:
        wanted = check_target_module_exists(theirs, module)
        assert ours.targets_module(module) == (bool(wanted) and type(wanted).__name__ != "_ExcludedModule"), module


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(PATTERNS, st.integers(1, 64), max_size=4),
    st.dictionaries(PATTERNS, st.floats(-64, 64), max_size=4),
    st.booleans(),
)
def test_rank_and_scale_of_a_module_are_those_of_the_pattern_that_peft_takes(
    ranks: dict[str, int], alphas: dict[str, float], is_stable: bool
) -> None:
    found = parsed(r=4, lora_alpha=6, rank_pattern=ranks, alpha_pattern=alphas, use_rslora=is_stable)
    for module in MODULES:
        rank = ranks.get(get_pattern_key(list(ranks), module), 4)
        alpha = alphas.get(get_pattern_key(list(alphas), module), 6)
        assert found.rank_of(module) == rank
        assert found.scale_of(module) == alpha / (math.sqrt(rank) if is_stable else rank)


def test_a_pattern_for_modules_is_not_run_and_the_tensors_are_believed() -> None:
    assert parsed(target_modules="(a+)+$").targets_module("model.layers.0.self_attn.q_proj") is None
    by_pattern = parsed(target_modules=["q_proj"], exclude_modules=".*0.*")
    assert by_pattern.targets_module("model.layers.0.self_attn.q_proj") is None
    assert by_pattern.targets_module("model.layers.0.self_attn.k_proj") is False


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "IA3"}, ["peft_type", "'IA3'", "LORA"]),
        ({"peft_type": None}, ["peft_type", "LORA"]),
        ({"bias": "lora_only"}, ["bias", "lora_only", "none"]),
        ({"use_dora": True}, ["use_dora", "DoRA"]),
        ({"modules_to_save": ["lm_head"]}, ["modules_to_save", "lm_head"]),
        ({"trainable_token_indices": [1]}, ["trainable_token_indices", "embeddings"]),
        ({"lora_bias": True}, ["lora_bias"]),
        ({"target_parameters": ["experts.w"]}, ["target_parameters"]),
        ({"layer_replication": [[0, 4], [2, 5]]}, ["layer_replication"]),
        ({"alora_invocation_tokens": [1, 2]}, ["alora_invocation_tokens"]),
        ({"loftq_config": {"bits": 4}}, ["loftq_config", "LoftQ"]),
        ({"init_lora_weights": "pissa_niter_16"}, ["init_lora_weights", "pissa_niter_16", "base"]),
        ({"init_lora_weights": "olora"}, ["init_lora_weights", "olora"]),
        ({"fan_in_fan_out": True}, ["fan_in_fan_out"]),
        ({"use_something_new": {"depth": 3}}, ["use_something_new", "not supported"]),
        ({"r": 0}, ["r", "0", "at least 1"]),
        ({"r": 8.0}, ["r", "8.0"]),
        ({"r": None}, ["r", "None"]),
        ({"lora_alpha": float("inf")}, ["lora_alpha", "inf", "finite"]),
        ({"lora_alpha": float("nan")}, ["lora_alpha", "nan"]),
        ({"lora_alpha": "8"}, ["lora_alpha", "'8'"]),
        ({"lora_alpha": True}, ["lora_alpha", "True"]),
        ({"alpha_pattern": {"q_proj": None}}, ["alpha_pattern", "None"]),
        ({"rank_pattern": {"q_proj": -1}}, ["rank_pattern", "-1"]),
        ({"rank_pattern": {"(q|k)_proj": 4}}, ["rank_pattern", "(q|k)_proj", "patterns"]),
        ({"alpha_pattern": {".*": 4}}, ["alpha_pattern", ".*"]),
        ({"alpha_pattern": [4]}, ["alpha_pattern", "[4]"]),
        ({"use_rslora": "yes"}, ["use_rslora", "'yes'"]),
        ({"target_modules": []}, ["target_modules", "no module"]),
        ({"target_modules": None}, ["target_modules"]),
        ({"target_modules": ["q_proj", 3]}, ["target_modules"]),
        ({"exclude_modules": {"q_proj": 1}}, ["exclude_modules"]),
        ({"layers_to_transform": [0, -1]}, ["layers_to_transform", "-1"]),
        ({"layers_to_transform": True}, ["layers_to_transform", "True"]),
        ({"layers_to_transform": [0], "layers_pattern": "blocks"}, ["layers_pattern", "blocks"]),
        ({"layers_to_transform": [0], "target_modules": "all-linear"}, ["layers_to_transform", "list"]),
    ],
)  # fmt: skip
def test_what_is_not_obeyed_is_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(FormatError) as refusal:
        parsed(**changes)
    for word in ("adapter_config.json", *words):
        assert word in str(refusal.value)


@pytest.mark.parametrize("beginning", [True, False, None, "gaussian", "eva", "orthogonal"])
def test_how_training_began_is_of_no_account_where_the_base_was_left_as_it_is(beginning: object) -> None:
    assert parsed(init_lora_weights=beginning, lora_dropout=0.1, inference_mode=True).rank == 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted({*LoraConfig().to_dict(), "new"})), JSON, max_size=8))
def test_whatever_stands_there_is_read_or_refused_with_the_field(changes: dict[str, Any]) -> None:
    with contextlib.suppress(FormatError):
        found = parsed(**changes)
        assert found.rank >= 1
        assert math.isfinite(found.scale_of("model.layers.0.self_attn.q_proj"))
