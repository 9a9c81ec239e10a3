"""Random attention steps over a poisoned paged cache, and their answer in float64.

Used by the conformance kit (`asyncpage.testing.attention`). A scene plays the executor's part towards a backend; the
answer is computed from unpaged keys and values, so it shares nothing with any backend.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncpage.backends.contract import AttentionBackend, AttentionSpec, Batch, DeviceInfo, LayerParams, Limits
from asyncpage.backends.memory import allocate_kv

# No pool has this block: reading such an entry faults or fails at once.
POISON = 1_000_000

# Relative error of the whole output against float64, by the coarsest type on the way.
TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}


def make_spec(**changes: Any) -> AttentionSpec:
    """Plain causal attention of 6 query heads over 2 key heads of size 64 in float32, but for `changes`."""
    plain = AttentionSpec("mha", 6, 2, 64, 64, "float32", "float32", 16)
    changes.setdefault("kv_dtype", changes.get("dtype", "float32"))
    changes.setdefault("v_head_dim", changes.get("head_dim", 64))
    return replace(plain, **changes)


def make_latent_spec(**changes: Any) -> AttentionSpec:
    """The same of 6 query heads over one latent row of 80 items, of which 64 are its value."""
    return make_spec(**{"kind": "mla", "kv_heads": 1, "head_dim": 80, "v_head_dim": 64, **changes})


def token_items(spec: AttentionSpec) -> int:
    """Items that the cache of one layer needs for a token."""
    return spec.head_dim if spec.kind == "mla" else spec.kv_heads * (spec.head_dim + spec.v_head_dim)


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What one sequence holds: `q` [length, q_heads, D] of every position, `k` [length, kv_heads, D] and `v`."""

    q: Tensor
    k: Tensor
    v: Tensor


class Scene:
    """One backend, one KV tensor full of NaN, and sequences with blocks scattered over it.

    `lengths`: tokens that each sequence will have in the end. `padding`: tokens and sequences that every batch is
    padded with; the tokens' q, k and v are NaN.
    """

    def __init__(
        self,
        backend: type[AttentionBackend[Any]],
        device: DeviceInfo,
        spec: AttentionSpec,
        lengths: list[int],
        *,
        seed: int = 0,
        padding: tuple[int, int] = (3, 2),
    ) -> None:
        self.spec = spec
        self.device = torch.device(device.torch_device)
        self.padding = padding
        self._random = torch.Generator().manual_seed(seed)
        limits = Limits(len(lengths) + padding[1], sum(lengths) + padding[0], max(lengths))
        self.backend = backend(spec, device, limits)
        tables = [-(-length // spec.block_size) for length in lengths]
        self.blocks = sum(tables) + 4
        self.kv = allocate_kv(backend.kv_layout(spec, device), self.blocks, device).fill_(torch.nan)
        order = (torch.randperm(self.blocks - 1, generator=self._random) + 1).tolist()
        self.tables = [[order.pop() for _ in range(count)] for count in tables]
        self.unused = order
        self.contents = [self._content(length) for length in lengths]
        scale = spec.head_dim**-0.5
        sinks = self._normal(spec.q_heads) if spec.sinks else None
        slopes = torch.rand(spec.q_heads, generator=self._random) * 0.2 if spec.alibi else None
        self.params = LayerParams(
            scale,
            sinks=None if sinks is None else sinks.to(self.device),
            slopes=None if slopes is None else slopes.to(self.device),
        )
        need = self.backend.workspace_bytes(limits)
        self._guarded = torch.full((need + 256,), 0xA5, dtype=torch.uint8, device=self.device)
        self.workspace = self._guarded[:need]

    def step(self, rows: list[tuple[int, int, int]]) -> tuple[Tensor, Tensor | None]:
        """Write and attend tokens `start` to `end` of each (sequence, start, end); what came before is cached.

        Returns out and lse of the real tokens.
        """
        batch = self.batch(rows)
        q, k, v = (self._rows(rows, name) for name in ("q", "k", "v"))
        plan = self.backend.plan(batch, self.workspace)
        self.backend.write_kv(k, v, self.kv, plan, self.params)
        out = q.new_full((*q.shape[:2], self.spec.v_head_dim), torch.nan)
        lse = torch.full(q.shape[:2], torch.nan, device=self.device) if self.spec.need_lse else None
        self.backend.run(q, self.kv, out, plan, self.params, lse)
        assert (self._guarded[len(self.workspace) :] == 0xA5).all(), "wrote beyond workspace_bytes"
        assert (out[batch.n_tokens :] == 0).all(), "padding tokens must come out as zeros"
        return out[: batch.n_tokens], None if lse is None else lse[: batch.n_tokens]

    def write(self, rows: list[tuple[int, int, int]]) -> None:
        """Only write the tokens' KV."""
        plan = self.backend.plan(self.batch(rows), self.workspace)
        self.backend.write_kv(self._rows(rows, "k"), self._rows(rows, "v"), self.kv, plan, self.params)

    def answer(self, rows: list[tuple[int, int, int]]) -> tuple[Tensor, Tensor]:
        """The true out and lse of `step(rows)`, float64 on the host."""
        found = [self._attend(self.contents[sequence], start, end) for sequence, start, end in rows]
        return torch.cat([out for out, _ in found]), torch.cat([lse for _, lse in found])

    def batch(self, rows: list[tuple[int, int, int]]) -> Batch:
        """The step as the executor would hand it over, every entry that must not be read poisoned."""
        size, window = self.spec.block_size, self.spec.window
        pad_tokens, pad_sequences = self.padding
        counts = [end - start for _, start, end in rows]
        cu_q = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        kv_len = np.array([end for _, _, end in rows], dtype=np.int32)
        width = max(len(table) for table in self.tables) + 1
        table = np.full((len(rows) + pad_sequences, width), POISON, dtype=np.int32)
        slots = []
        for at, (sequence, start, end) in enumerate(rows):
            blocks = self.tables[sequence]
            seen = max(0, start + 1 - window) // size if window else 0
            last = -(-end // size)
            table[at, seen:last] = blocks[seen:last]
            slots += [blocks[position // size] * size + position % size for position in range(start, end)]
        slots += [-1] * pad_tokens
        tail = np.full(pad_sequences, cu_q[-1], dtype=np.int32)
        return Batch(
            len(rows),
            sum(counts),
            max(counts),
            int(kv_len.max()),
            cu_q,
            kv_len,
            cu_q=torch.from_numpy(np.concatenate([cu_q, tail])).to(self.device),
            kv_len=torch.from_numpy(np.concatenate([kv_len, tail * 0])).to(self.device),
            block_table=torch.from_numpy(table).to(self.device),
            slots=torch.tensor(slots, dtype=torch.int64, device=self.device),
            uniform_q=counts[0] if len(set(counts)) == 1 else None,
        )

    def _rows(self, rows: list[tuple[int, int, int]], name: str) -> Tensor:
        real = [getattr(self.contents[sequence], name)[start:end] for sequence, start, end in rows]
        padding = torch.full((self.padding[0], *real[0].shape[1:]), torch.nan, dtype=real[0].dtype)
        return torch.cat([*real, padding]).to(self.device)

    def _content(self, length: int) -> Content:
        spec = self.spec
        dtype = getattr(torch, spec.dtype)
        q, k = (self._normal(length, count, spec.head_dim).to(dtype) for count in (spec.q_heads, spec.kv_heads))
        is_latent = spec.kind == "mla"
        v = k[..., : spec.v_head_dim] if is_latent else self._normal(length, spec.kv_heads, spec.v_head_dim).to(dtype)
        return Content(q, k, v)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._random)

    def _attend(self, content: Content, start: int, end: int) -> tuple[Tensor, Tensor]:
        spec = self.spec
        kv_dtype = getattr(torch, spec.kv_dtype)
        group = spec.q_heads // spec.kv_heads
        q = content.q[start:end].double()
        k, v = (held[:end].to(kv_dtype).double().repeat_interleave(group, dim=1) for held in (content.k, content.v))
        scores = torch.einsum("chd,lhd->hcl", q, k) * self.params.scale
        if spec.softcap:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        distance = torch.arange(end)[None, :] - torch.arange(start, end)[:, None]
        if self.params.slopes is not None:
            scores = scores + self.params.slopes.cpu().double()[:, None, None] * distance
        hidden = distance > 0
        if spec.window:
            hidden = hidden | (distance <= -spec.window)
        scores = scores.masked_fill(hidden, -torch.inf)
        if self.params.sinks is not None:
            sinks = self.params.sinks.cpu().double()[:, None, None].expand(-1, end - start, 1)
            weights = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
            lse = torch.cat([scores, sinks], dim=-1).logsumexp(-1)
        else:
            weights, lse = scores.softmax(-1), scores.logsumexp(-1)
        return torch.einsum("hcl,lhd->chd", weights, v), lse.T


def relative_error(found: Tensor, true: Tensor) -> float:
    """||found - true|| / ||true||; NaN when anything is NaN."""
    return float((found.cpu().double() - true).norm() / true.norm())
