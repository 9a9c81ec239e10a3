"""Adapters of every family against PEFT, of all its linear maps but experts, beside rows of the model itself."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model

from asyncpage.adapters.shelf import read_adapter
from asyncpage.executor.lora.bank import AdapterBank
from asyncpage.messages import LearnAdapter
from tests.models.tiny import check, ours, prompts, tiny

GEMMA: dict[str, Any] = {"head_dim": 8, "sliding_window": 9, "query_pre_attn_scalar": 8}
ROPES = {"rope_type": "default", "rope_theta": 500.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"attention_bias": True, "mlp_bias": True},
    "Mistral": {"sliding_window": 9},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Gemma2": GEMMA,
    "Gemma3": GEMMA
    | {"num_hidden_layers": 7, "rope_parameters": {"full_attention": ROPES, "sliding_attention": ROPES}},
    "Phi3": {"num_key_value_heads": 6},
    "SmolLM3": {"num_hidden_layers": 5},
    "Olmo2": {},
    "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
    },
    "Qwen3Moe": {"head_dim": 8, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24},
    "DeepseekV2": {
        "num_key_value_heads": 6,
        "q_lora_rank": 28,
        "kv_lora_rank": 20,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 10,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
    },
}

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
TARGETS = {
    "Mixtral": ATTENTION,
    "Qwen3Moe": ATTENTION,
    "Qwen2Moe": [*ATTENTION, "shared_expert.gate_proj", "shared_expert.down_proj", "shared_expert_gate"],
    "DeepseekV2": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"],
}
"""Of families with experts, which adapters cannot change."""


@pytest.mark.parametrize("family", FAMILIES)
def test_every_linear_map_is_changed_as_peft_changes_it(family: str, paged_model: Any, tmp_path: Path) -> None:
    config = getattr(transformers, f"{family}TextConfig" if family == "Gemma3" else f"{family}Config")
    kind = getattr(transformers, f"{family}ForCausalLM")
    base = tiny(config, kind, FAMILIES[family], norm=0.0 if family.startswith("Gemma") else 1.0)
    settings = LoraConfig(
        r=3,
        lora_alpha=4,
        target_modules=TARGETS.get(family, "all-linear"),
        rank_pattern={"o_proj": 5, "down_proj": 1},
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own
        adapted = get_peft_model(copy.deepcopy(base), settings)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, 0.0, 0.15)
        adapted.save_pretrained(tmp_path)

    bank = AdapterBank(slots=1, most_read=1, max_rank=8, dtype=torch.float32, device="cpu")
    model = ours(base, adapt=bank.adapt)
    adapter = read_adapter(str(tmp_path), {linear.name: linear for linear in bank.linears}, 8)
    bank.learn(LearnAdapter(1, adapter))
    rows = np.arange(3, dtype=np.int32)
    for row, slot in zip(rows.tolist(), (1, 0, 1), strict=True):
        assert bank.add(row, slot) is None

    with torch.inference_mode():
        runner = paged_model(model, "cpu")
        sequences = [runner.add(tokens) for tokens in prompts(21, 17, 13)]
        for counts in ((13, 4, 1), (7, 9, 11), (1, 4, 1)):
            bank.plan(rows, np.array(counts, dtype=np.int32))
            runner.step(*zip(sequences, counts, strict=True))
    check(adapted, sequences[::2])
    check(base, sequences[1:2])
