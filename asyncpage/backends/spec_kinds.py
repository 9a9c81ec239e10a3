"""What the backends here share: which specs they refuse, and what a token has in a cache.

INVARIANT: a reason is a phrase that ends a sentence about the backend.
"""

from __future__ import annotations

from collections.abc import Container

from asyncpage.backends.contract import AttentionSpec, DeviceInfo

_CPU_TYPES = ("float32", "bfloat16", "float16")


def sides(spec: AttentionSpec) -> int:
    """What is cached for each head of a token: a key and a value, or one latent row that is both."""
    return 1 if spec.kind == "mla" else 2


def refusals(spec: AttentionSpec, kv_dtypes: Container[str]) -> list[str]:
    """Other kinds than causal multi-head and latent attention, and caches that are quantised or of another type."""
    reasons = []
    if spec.kind not in ("mha", "mla"):
        reasons.append(f"needs kind mha or mla, found {spec.kind}")
    if not spec.causal:
        reasons.append("needs causal attention")
    if spec.kind == "mha" and spec.v_head_dim != spec.head_dim:
        reasons.append(f"needs values as wide as keys, found {spec.v_head_dim} and {spec.head_dim}")
    if spec.kv_dtype not in kv_dtypes or spec.kv_scales != "none":
        reasons.append(f"needs an unscaled float KV cache, found {spec.kv_dtype} with scales {spec.kv_scales}")
    return reasons


def cpu_refusals(spec: AttentionSpec, device: DeviceInfo) -> list[str]:
    """Accelerators, and what is not of a type that a CPU's backends widen to float32, beside the above."""
    reasons = [] if device.kind == "cpu" else [f"needs a cpu, found {device}"]
    reasons += refusals(spec, _CPU_TYPES)
    if spec.dtype not in _CPU_TYPES:
        reasons.append(f"needs float32, bfloat16 or float16 queries, found {spec.dtype}")
    return reasons
