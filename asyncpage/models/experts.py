"""A mixture of experts as a feed-forward: each row goes through the few experts that its router chooses.

A layer (`decoder`) calls it like any other feed-forward. Rows are sorted by expert, so that each expert that has rows
does one product for all of them.

INVARIANT: a row's result is the sum over its own experts in the router's order, whoever its neighbours are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncpage.models.layers import RowMap
from asyncpage.models.router import Router


@dataclass(frozen=True, slots=True, eq=False)
class GroupedExperts:
    """The experts of a layer, in the order of their numbers."""

    experts: Sequence[RowMap]

    def __call__(self, x_PE: Tensor, counts: Sequence[int]) -> Tensor:
        """Rows [P, E] to rows [P, E]: the first `counts[0]` by expert 0, the next `counts[1]` by expert 1, and on."""
        out_PE = torch.empty_like(x_PE)
        start = 0
        for expert, count in zip(self.experts, counts, strict=True):
            if count:
                out_PE[start : start + count] = expert(x_PE[start : start + count])
                start += count
        return out_PE


@dataclass(frozen=True, slots=True, eq=False)
class MixtureOfExperts:
    """`shared`: a feed-forward that all rows go through beside their experts."""

    router: Router
    experts: GroupedExperts
    shared: RowMap | None = None

    def __call__(self, x_TE: Tensor) -> Tensor:
        weights_TK, experts_TK = self.router(x_TE)
        flat = experts_TK.view(-1)
        order = flat.argsort(stable=True)  # places (row, choice) by expert, and by row within one
        counts = torch.bincount(flat, minlength=len(self.experts.experts)).tolist()
        sorted_PE = self.experts(x_TE[order // experts_TK.shape[1]], counts)
        chosen_PE = torch.empty_like(sorted_PE)
        chosen_PE[order] = sorted_PE
        out_TE = (chosen_PE.view(*experts_TK.shape, -1) * weights_TK[..., None]).sum(1).to(x_TE.dtype)
        return out_TE if self.shared is None else out_TE.add_(self.shared(x_TE))


@dataclass(frozen=True, slots=True, eq=False)
class WeighedExpert:
    """A shared expert whose result each row weighs by the sigmoid of one product of its own (`gate`: E items to 1)."""

    expert: RowMap
    gate: RowMap

    def __call__(self, x_TE: Tensor) -> Tensor:
        return self.expert(x_TE).mul_(self.gate(x_TE).sigmoid())
