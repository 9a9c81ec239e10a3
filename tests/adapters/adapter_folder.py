"""Adapter folders written by hand, for tests of what is read from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from asyncpage.messages import AdaptableLinear
from tests.cases.model_folder import Array, write_safetensors

LINEARS = {
    linear.name: linear
    for layer in range(2)
    for linear in (
        AdaptableLinear(f"model.layers.{layer}.self_attn.q_proj", 6, 4),
        AdaptableLinear(f"model.layers.{layer}.self_attn.v_proj", 2, 4),
        AdaptableLinear(f"model.layers.{layer}.mlp.down_proj", 4, 8),
    )
}
"""The linear maps of a small model, by name."""

CONFIG: Mapping[str, Any] = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"]}


def tensors(rank: int = 3, names: tuple[str, ...] = ("q_proj", "v_proj"), seed: int = 0) -> dict[str, Array]:
    """A and B of every linear map of these names."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for name, linear in LINEARS.items():
        if name.rpartition(".")[2] in names:
            found[f"base_model.model.{name}.lora_A.weight"] = rng.standard_normal((rank, linear.columns)).astype("<f4")
            found[f"base_model.model.{name}.lora_B.weight"] = rng.standard_normal((linear.rows, rank)).astype("<f4")
    return found


def write(folder: Path, weights: Mapping[str, Array] | None = None, **changes: Any) -> Path:
    """An adapter's folder. `changes`: of its config."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **changes}))
    write_safetensors(folder / "adapter_model.safetensors", tensors() if weights is None else weights)
    return folder
