"""What each architecture's settings mean when a file says them in another way, or says something we do not do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncpage.errors import FormatError
from asyncpage.weights.checkpoint import open_checkpoint
from tests.weights.tiny_models import MODELS

WriteGGUF = Callable[..., Path]

S, F = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("name", "keys", "expected"),
    [
        ("gemma2", {}, [S, F, S]),
        ("gemma2", {"attention.sliding_window_pattern": 3}, [S, S, F]),
        ("gemma2", {"attention.sliding_window_pattern": [False, True, True]}, [F, S, S]),
        ("gemma3", {}, [S, S, S, S, S, F, S]),
        ("gemma3", {"attention.sliding_window_pattern": 1}, [F] * 7),
        ("gemma3", {"attention.sliding_window": None}, [F] * 7),
        ("gemma3", {"attention.sliding_window": 0}, [F] * 7),
    ],
)
def test_the_layers_that_slide_are_those_of_the_pattern(
    write_gguf: WriteGGUF, name: str, keys: dict[str, Any], expected: list[str]
) -> None:
    config = open_checkpoint(write_gguf(MODELS[name](), keys=keys)).config
    assert config["layer_types"] == expected
    assert (config["sliding_window"] is None) == ("attention.sliding_window" in keys)


def test_what_a_gemma_leaves_out_is_what_its_publisher_took(write_gguf: WriteGGUF) -> None:
    left_out = ("attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window")
    config = open_checkpoint(write_gguf(MODELS["gemma2"](), keys=dict.fromkeys(left_out))).config
    assert [config[name] for name in (*left_out[:2], "sliding_window")] == [50.0, 30.0, 4096]
    config = open_checkpoint(write_gguf(MODELS["gemma3"](), keys={"rope.freq_base_swa": None})).config
    assert config["rope_parameters"]["sliding_attention"] == {"rope_type": "default", "rope_theta": 10000.0}
    config = open_checkpoint(write_gguf(MODELS["gemma3"](), keys={"final_logit_softcapping": 20.0})).config
    assert config["final_logit_softcapping"] == 20.0


def test_a_yarn_attention_factor_of_the_config_is_kept(write_gguf: WriteGGUF) -> None:
    config = open_checkpoint(write_gguf(MODELS["qwen2-yarn"](), keys={"rope.scaling.yarn_attn_factor": 1.5})).config
    assert config["rope_scaling"]["attention_factor"] == 1.5


def test_the_size_of_an_expert_may_follow_from_that_of_the_layer(write_gguf: WriteGGUF) -> None:
    keys = {"expert_feed_forward_length": None, "feed_forward_length": 40}
    assert open_checkpoint(write_gguf(MODELS["qwen3moe"](), keys=keys)).config["moe_intermediate_size"] == 20


@pytest.mark.parametrize(
    ("name", "keys", "where"),
    [
        ("mixtral", {"expert_weights_norm": False}, "llama.expert_weights_norm"),
        ("mixtral", {"expert_weights_scale": 2.0}, "llama.expert_weights_scale"),
        ("mixtral", {"expert_gating_func": 2}, "llama.expert_gating_func"),
        ("mixtral", {"expert_used_count": 6}, "llama.expert_used_count"),
        ("mixtral", {"expert_shared_feed_forward_length": 8}, "llama.expert_shared_feed_forward_length"),
        ("mistral", {"attention.temperature_scale": 0.1}, "llama.attention.temperature_scale"),
        ("llama", {"rope.scaling.attn_factor": 2.0}, "llama.rope.scaling.attn_factor"),
        ("qwen2", {"attention.sliding_window": 16}, "qwen2.attention.sliding_window"),
        ("qwen2", {"attention.causal": False}, "qwen2.attention.causal"),
        ("qwen2", {"rope.scaling.type": "longrope"}, "qwen2.rope.scaling.type"),
        ("qwen2-yarn", {"rope.scaling.yarn_ext_factor": 0.5}, "qwen2.rope.scaling.yarn_ext_factor"),
        ("qwen2-yarn", {"rope.scaling.yarn_log_multiplier": 0.1}, "qwen2.rope.scaling.yarn_log_multiplier"),
        ("qwen3", {"rope.dimension_sections": [4, 4, 4, 0]}, "qwen3.rope.dimension_sections"),
        ("qwen3", {"n_deepstack_layers": 3}, "qwen3.n_deepstack_layers"),
        ("qwen3moe", {"expert_weights_norm": False}, "qwen3moe.expert_weights_norm"),
        ("qwen3moe", {"expert_group_count": 4}, "qwen3moe.expert_group_count"),
        ("qwen3moe", {"swiglu_clamp_exp": [0.0, 7.0]}, "qwen3moe.swiglu_clamp_exp"),
        ("gemma2", {"rope.freq_base_swa": 5000.0}, "gemma2.rope.freq_base_swa"),
        ("gemma2", {"attn_logit_softcapping": 0.0}, "gemma2.attn_logit_softcapping"),
        ("gemma2", {"attention.sliding_window_pattern": [True]}, "gemma2.attention.sliding_window_pattern"),
        ("gemma2", {"attention.sliding_window_pattern": [2, 0, 0]}, "gemma2.attention.sliding_window_pattern"),
        ("gemma2", {"attention.sliding_window_pattern": 0}, "gemma2.attention.sliding_window_pattern"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "gemma3.attn_logit_softcapping"),
        ("gemma3", {"attention.key_length_swa": 12}, "gemma3.attention.key_length_swa"),
        ("phi3", {"rope.dimension_count": 10}, "phi3.rope.dimension_count"),
        ("phi3", {"rope.dimension_count": 5}, "phi3.rope.dimension_count"),
        ("phi3", {"rope.scaling.attn_factor": 1.5}, "phi3.rope.scaling.attn_factor"),
        ("phi3", {"rope.scaling.factor": 2.0}, "phi3.rope.scaling.factor"),
        ("phi3", {"rope.scaling.type": "yarn"}, "phi3.rope.scaling.type"),
        ("phi3", {"rope.scaling.type": "longrope"}, "tensor 'rope_factors_long.weight': is missing"),
        ("smollm3", {"attention.sliding_window": 16}, "smollm3.attention.sliding_window"),
        ("smollm3", {"attention.scale": 0.5}, "smollm3.attention.scale"),
        ("olmo2", {"attention.sliding_window": 16}, "olmo2.attention.sliding_window"),
        ("olmo2", {"attention.clamp_kqv": 8.0}, "olmo2.attention.clamp_kqv"),
        ("deepseek2", {"expert_gating_func": 2}, "deepseek2.expert_gating_func"),
        ("deepseek2", {"expert_group_count": 4}, "deepseek2.expert_group_count"),
        ("deepseek2", {"expert_group_used_count": None}, "deepseek2.expert_group_used_count"),
        ("deepseek2", {"nextn_predict_layers": 1}, "deepseek2.nextn_predict_layers"),
        ("deepseek2", {"leading_dense_block_count": 4}, "deepseek2.leading_dense_block_count"),
        ("deepseek2", {"attention.head_count_kv": 6}, "deepseek2.attention.head_count_kv"),
        ("deepseek2", {"attention.key_length": 20}, "deepseek2.attention.key_length"),
        ("deepseek2", {"rope.dimension_count": 14}, "deepseek2.rope.dimension_count"),
        ("deepseek2", {"rope.scaling.yarn_log_multiplier": 0.05}, "deepseek2.rope.scaling.yarn_log_multiplier"),
        ("deepseek2-lite", {"rope.scaling.yarn_log_multiplier": None}, "deepseek2.rope.scaling.yarn_log_multiplier"),
        ("deepseek2-lite", {"attention.temperature_scale": 0.1}, "deepseek2.attention.temperature_scale"),
    ],
)  # fmt: skip
def test_a_setting_that_is_not_obeyed_is_refused_by_name(
    write_gguf: WriteGGUF, name: str, keys: dict[str, Any], where: str
) -> None:
    path = write_gguf(MODELS[name](), keys=keys)
    with pytest.raises(FormatError) as caught:
        open_checkpoint(path)
    assert str(caught.value).startswith(f"{path}: {where}")


@pytest.mark.parametrize(
    ("name", "add"),
    [
        ("qwen2", "rope_freqs.weight"), ("smollm3", "rope_freqs.weight"), ("llama", "rope_factors_long.weight"),
        ("phi3-longrope", "rope_freqs.weight"), ("qwen3", "cls.output.weight"), ("qwen2", "output.bias"),
        ("qwen2", "blk.1.attn_output.bias"), ("deepseek2", "blk.1.exp_probs_b.bias"),
        ("gemma2", "blk.0.attn_q.bias"), ("llama", "blk.0.attn_q.scale"),
    ],
)  # fmt: skip
def test_a_tensor_that_the_architecture_has_no_place_for_is_refused(write_gguf: WriteGGUF, name: str, add: str) -> None:
    path = write_gguf(MODELS[name](), add={add: np.ones(4, np.float32)})
    with pytest.raises(FormatError, match=r"is not part of a [a-z0-9]+ model"):
        open_checkpoint(path)
