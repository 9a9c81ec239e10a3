"""Compares a model of the transformers library, run our way, with the same model and its own attention.

`transformers_family` asks once, when the weights are there. It is what finds that a model does something with tokens
beside attention, counts positions by itself, or means something by an argument that seemed to be idle.

INVARIANT: two prompts are computed in one row, one of them in two parts, so that neither whole prompts nor rows of a
single one can hide a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncpage.backends.contract import Batch, DeviceInfo, Limits
from asyncpage.backends.memory import allocate_kv
from asyncpage.backends.reference import ReferenceBackend, ReferencePlan
from asyncpage.errors import ModelError
from asyncpage.models.model import Model

LENGTHS = (19, 7)
STEPS = ((11, 7), (8, 0))  # tokens of each prompt
PARTS = [count for counts in zip(*STEPS, strict=True) for count in counts if count]  # as logits lie
BLOCK = max(LENGTHS)  # tokens of a block: each prompt has one

MOST = {torch.float32: 1e-3, torch.float64: 1e-3}
MOST_NARROW = 0.1
"""How far logits may be, as a part of their spread: types of 16 bits round in other places."""


def own_logits(module: Any) -> Tensor:
    """Logits of two prompts, one below the other, by the module as the library made it."""
    own = module.config._attn_implementation
    module.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            made = [module(input_ids=one[None], use_cache=False).logits[0].float() for one in _prompts(module)]
    finally:
        module.set_attn_implementation(own)
    return torch.cat(made)


def compare(module: Any, model: Model, own_NV: Tensor) -> None:
    """Errors: `ModelError` when the model's logits are not the module's own, or no numbers."""
    device, dtype = next(module.parameters()).device, next(module.parameters()).dtype
    with torch.inference_mode():
        ours_NV = torch.cat(list(_paged(model, _prompts(module), str(dtype).removeprefix("torch."), device)))
    spread_N1 = (own_NV - own_NV.mean(-1, keepdim=True)).norm(dim=-1, keepdim=True)
    apart_N = ((ours_NV - own_NV) / spread_N1).norm(dim=-1)
    # Each part by itself: what is wrong may be so in one of them only. In narrow types its middle token, as where
    # experts are chosen a token may come to other ones by a rounding.
    parts = torch.split(apart_N, PARTS)
    apart = float(torch.stack([part.max() if dtype in MOST else part.median() for part in parts]).max())
    if not apart <= MOST.get(dtype, MOST_NARROW):
        raise ModelError(
            f"its logits are others than with its own attention (apart by {apart:.3g} of their spread), "
            "so it does more with a sequence than it asks of attention"
        )


def _prompts(module: Any) -> list[Tensor]:
    table = module.get_input_embeddings().weight
    return [(torch.arange(length, device=table.device) * 7919 + 13 * length) % len(table) for length in LENGTHS]


def _paged(model: Model, prompts: Sequence[Tensor], dtype: str, device: torch.device) -> Iterator[Tensor]:
    """Logits of each prompt's tokens, in the order of the prompts."""
    pages = _Pages(model, dtype, device)
    made: list[list[Tensor]] = [[] for _ in prompts]
    begins = [0] * len(prompts)
    for counts in STEPS:
        ends = [begin + count for begin, count in zip(begins, counts, strict=True)]
        parts = [range(*part) for part in zip(begins, ends, strict=True)]
        pages.plan(begins, ends)
        tokens_T = torch.cat([one[part.start : part.stop] for one, part in zip(prompts, parts, strict=True)])
        positions_T = torch.tensor([at for part in parts for at in part], device=device)
        logits_TV = model.logits(model.forward(tokens_T, positions_T, pages.attend))
        for rows, some in zip(made, torch.split(logits_TV, list(counts)), strict=True):
            rows.append(some)
        begins = ends
    return chain.from_iterable(made)


class _Pages:
    """Caches of a model's layers, a block for each prompt, and attention over them as its definition reads."""

    def __init__(self, model: Model, dtype: str, device: torch.device) -> None:
        here = DeviceInfo("cpu" if device.type == "cpu" else "cuda", "", device.index or 0)
        specs = model.specs(dtype, BLOCK)
        reasons = [reason for spec in specs for reason in ReferenceBackend.unsupported(spec, here)]
        if reasons:
            raise ModelError(f"its attention {reasons[0]}")
        limits = Limits(len(LENGTHS), sum(LENGTHS), BLOCK)
        self._model, self._device = model, device
        self._backends = [ReferenceBackend(spec, here, limits) for spec in specs]
        layouts = [ReferenceBackend.kv_layout(specs[group], here) for group in model.layer_groups]
        self._caches = [allocate_kv(layout, len(LENGTHS), here) for layout in layouts]
        self._plans: list[ReferencePlan] = []

    def plan(self, begins: Sequence[int], ends: Sequence[int]) -> None:
        """A step from these positions of the prompts to these."""
        batch, nothing = _batch(begins, ends, self._device), torch.empty(0, dtype=torch.uint8)
        self._plans = [backend.plan(batch, nothing) for backend in self._backends]

    def attend(self, layer: int, q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> Tensor:
        """See `model.Attend`."""
        group, cache, params = self._model.layer_groups[layer], self._caches[layer], self._model.layer_params[layer]
        backend, plan = self._backends[group], self._plans[group]
        backend.write_kv(k_TGD, v_TGD, cache, plan, params)
        out_THD = q_THD.new_empty(*q_THD.shape[:2], v_TGD.shape[2])
        backend.run(q_THD, cache, out_THD, plan, params)
        return out_THD


def _batch(begins: Sequence[int], ends: Sequence[int], device: torch.device) -> Batch:
    cu_q = np.cumsum([0, *(end - begin for begin, end in zip(begins, ends, strict=True))]).astype(np.int32)
    kv_len = np.array(ends, dtype=np.int32)
    slots = [row * BLOCK + at for row, part in enumerate(zip(begins, ends, strict=True)) for at in range(*part)]
    table = torch.arange(len(ends), dtype=torch.int32, device=device)[:, None]
    return Batch(
        n_seqs=len(ends),
        n_tokens=len(slots),
        max_q=int(np.diff(cu_q).max()),
        max_kv=max(ends),
        cu_q_host=cu_q,
        kv_len_host=kv_len,
        cu_q=torch.from_numpy(cu_q).to(device),
        kv_len=torch.from_numpy(kv_len).to(device),
        block_table=table,
        slots=torch.tensor(slots, device=device),
    )
