"""Adapters for the LoRA cases: rank 4 on TINY's query and value projections, one good and seven that must be refused.

The good one's effect has a closed form: each projection W becomes W + (alpha / rank) B A.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.cases.model_folder import Array, write_safetensors

RANK, ALPHA = 4, 8
SHAPES = {"q_proj": (64, 64), "v_proj": (32, 64)}  # [out, in]


def tensors(seed: int, rank: int = RANK, width: int = 64, module: str = "model.layers") -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for layer in range(2):
        for name, (rows, _) in SHAPES.items():
            stem = f"base_model.model.{module}.{layer}.self_attn.{name}"
            found[f"{stem}.lora_A.weight"] = rng.standard_normal((rank, width)).astype(np.float32) * 0.3
            found[f"{stem}.lora_B.weight"] = rng.standard_normal((rows, rank)).astype(np.float32) * 0.3
    return found


def write_adapter(folder: Path, weights: dict[str, Array], **changes: Any) -> Path:
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": list(SHAPES), "bias": "none",
        "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny", **changes,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    write_safetensors(folder / "adapter_model.safetensors", weights)
    return folder


def write_all(folder: Path) -> Path:
    """`folder` with everything that the case's paths name, "absent" aside. Returns it."""
    write_adapter(folder / "lora_ok", tensors(1))
    for index, name in enumerate("abcd"):
        write_adapter(folder / f"lora_{name}", tensors(10 + index))
    (folder / "empty_dir").mkdir()
    write_adapter(folder / "rank_too_high", tensors(2, rank=1024), r=1024)
    write_adapter(folder / "wrong_shapes", tensors(3, width=48))
    write_adapter(folder / "other_base_modules", tensors(4, module="transformer.blocks"))
    truncated = write_adapter(folder / "truncated_safetensors", tensors(5)) / "adapter_model.safetensors"
    truncated.write_bytes(truncated.read_bytes()[:-100])
    broken = tensors(6)
    next(iter(broken.values()))[0, 0] = np.nan
    write_adapter(folder / "nan_weights", broken)
    return folder


def merged(base: dict[str, Any], adapter: dict[str, Array]) -> dict[str, Any]:
    """A model's weights with an adapter's added: the closed form."""
    found = dict(base)
    for key, b in adapter.items():
        if key.endswith(".lora_B.weight"):
            stem = key.removeprefix("base_model.model.").removesuffix(".lora_B.weight")
            a = adapter[key.replace("lora_B", "lora_A")].astype(np.float64)
            found[f"{stem}.weight"] = found[f"{stem}.weight"] + ALPHA / RANK * b.astype(np.float64) @ a
    return found
