"""A layer's experts in GGUF: one stack a product, gate and up in one stack, or a tensor an expert as old files have.

The translations of architectures with experts call it; it sends to nobody.

INVARIANT: an expert's tensor is rows of its stack, so reading one never dequantises another.
"""

from __future__ import annotations

from collections.abc import Mapping

from asyncpage.weights.gguf_keys import Keys
from asyncpage.weights.gguf_tensors import Tensors

# In all layers together; the largest known model has some 23,000. Each becomes three names.
MAX_EXPERTS = 1 << 16


def expert_counts(keys: Keys, layers: int) -> tuple[int, int]:
    """How many experts a layer has, and how many of them a token goes through."""
    experts = keys.count("expert_count", most=MAX_EXPERTS // layers)
    return experts, keys.count("expert_used_count", most=experts)


def add_experts(
    tensors: Tensors, here: str, there: str, *, experts: int, hidden: int, inner: int, names: Mapping[str, str]
) -> None:
    """`here` (`model.layers.0.mlp.experts`) from block `there`; `names`: gate, up and down -> Hugging Face's."""
    fused = f"{there}.ffn_gate_up_exps.weight"
    for product, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
        stack = f"{there}.ffn_{product}_exps.weight"
        for expert in range(experts):
            name = f"{here}.{expert}.{names[product]}.weight"
            if product != "down" and tensors.has(fused):
                first = 2 * rows * expert + (rows if product == "up" else 0)
                tensors.add_rows(name, fused, (experts, 2 * rows, columns), first, rows)
            elif tensors.has(f"{there}.ffn_{product}.{expert}.weight"):
                tensors.add(name, f"{there}.ffn_{product}.{expert}.weight", rows, columns)
            else:
                tensors.add_rows(name, stack, (experts, rows, columns), rows * expert, rows)
