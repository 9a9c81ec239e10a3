"""What backends on CPUs share: which specs they refuse, and what a token has in a cache.

INVARIANT: a reason is a phrase that ends a sentence about the backend.
"""

from __future__ import annotations

from asyncpage.backends.contract import AttentionSpec, DeviceInfo


def sides(spec: AttentionSpec) -> int:
    """What is cached for each head of a token: a key and a value, or one latent row that is both."""
    return 1 if spec.kind == "mla" else 2


def refusals(spec: AttentionSpec, device: DeviceInfo) -> list[str]:
    """Accelerators, other kinds than causal multi-head and latent attention, and quantised caches."""
    reasons = []
    if device.kind != "cpu":
        reasons.append(f"needs a cpu, found {device}")
    if spec.kind not in ("mha", "mla"):
        reasons.append(f"needs kind mha or mla, found {spec.kind}")
    if not spec.causal:
        reasons.append("needs causal attention")
    if spec.kind == "mha" and spec.v_head_dim != spec.head_dim:
        reasons.append(f"needs values as wide as keys, found {spec.v_head_dim} and {spec.head_dim}")
    if spec.kv_dtype not in ("float32", "bfloat16", "float16") or spec.kv_scales != "none":
        reasons.append(f"needs an unscaled float KV cache, found {spec.kv_dtype} with scales {spec.kv_scales}")
    if spec.dtype not in ("float32", "bfloat16", "float16"):
        reasons.append(f"needs float32, bfloat16 or float16 queries, found {spec.dtype}")
    return reasons
