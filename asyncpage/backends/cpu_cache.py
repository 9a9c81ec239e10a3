"""The cache that CPU backends share: its layout, its copies, and what none of them can serve.

INVARIANT: [keys and values, heads, blocks, tokens, head size], so that whichever backend a process chose, its blocks
are another one's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncpage.backends.contract import AttentionSpec, DeviceInfo, KVLayout


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


def layout(spec: AttentionSpec) -> KVLayout:
    """One head's tokens lie behind one another; latent rows are keys and values at once."""
    return KVLayout((sides(spec), spec.kv_heads, -1, spec.block_size, spec.head_dim), spec.kv_dtype)


def tokens(spec: AttentionSpec, kv: Tensor) -> Tensor:
    """The cache as [keys of each head, then values of each head; slots; head size]."""
    return kv.view(sides(spec) * spec.kv_heads, -1, spec.head_dim)


def copy_tokens(spec: AttentionSpec, kv: Tensor, copies: Tensor) -> None:
    """As the contract says: all sources are read, then all destinations written, slot by slot."""
    counts = copies[:, 2]
    begins = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    offsets = torch.arange(len(begins)) - begins
    sources, destinations = torch.repeat_interleave(copies[:, :2] * spec.block_size, counts, dim=0).T
    cache = tokens(spec, kv)
    cache.index_copy_(1, destinations + offsets, cache.index_select(1, sources + offsets))
