"""Adapters of the tiny model that PEFT has made and saved, and PEFT's own model with each as the oracle."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaForCausalLM

from tests.e2e.oracle import Oracle

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

KINDS: Mapping[str, Mapping[str, Any]] = {
    "queries": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "everything": {"r": 8, "lora_alpha": 16, "target_modules": ALL},
    "large": {"r": 64, "lora_alpha": 64, "target_modules": ALL},
    "stable": {"r": 16, "lora_alpha": 4, "use_rslora": True, "target_modules": ALL},
    "patterns": {
        "r": 4,
        "lora_alpha": 6,
        "target_modules": ALL,
        "rank_pattern": {"q_proj": 7, "layers.1.mlp.down_proj": 2, "^model.layers.0.self_attn.k_proj": 3},
        "alpha_pattern": {"layers.0.self_attn.q_proj": 20, "down_proj": 1},
    },
    "last-layer": {"r": 3, "lora_alpha": 9, "target_modules": ["up_proj", "k_proj"], "layers_to_transform": [1]},
    "by-pattern": {"r": 5, "lora_alpha": 10, "target_modules": r".*\.(o_proj|gate_proj)"},
    "excluding": {"r": 2, "lora_alpha": 8, "target_modules": "all-linear", "exclude_modules": ["down_proj", "v_proj"]},
}
"""Eight adapters of different ranks and targets, by name."""


def make_adapter(model: Path, folder: Path, seed: int, **settings: Any) -> Oracle:
    """Save a random adapter of the model in `folder`; returns PEFT's model as it is read back from there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own
        made = get_peft_model(_base(model), LoraConfig(task_type="CAUSAL_LM", **settings))
        torch.manual_seed(seed)
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, 0.0, 0.25)
        made.save_pretrained(folder)
        return Oracle(PeftModel.from_pretrained(_base(model), folder).float().eval())


def _base(model: Path) -> Any:
    return LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
