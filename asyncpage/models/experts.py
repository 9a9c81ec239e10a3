"""A mixture of experts as a feed-forward: each row goes through the few experts that its router chooses.

A layer (`decoder`) calls it like any other feed-forward. Rows are sorted by expert, so that each expert that has rows
does one product for all of them. Who runs them is a host's affair: all here (`AllHere`), or ranks that share them.

INVARIANT: a row's result is the sum over its own experts in the router's order, whoever its neighbours are and
wherever they ran.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from asyncpage.models.layers import RowMap
from asyncpage.models.router import Router

if TYPE_CHECKING:
    from asyncpage.models.parameter import Parameters

MakeExpert = Callable[[int, "Parameters"], RowMap]
"""make(number, parameters) -> that expert of a layer, its tensors taken from `parameters`."""


class ExpertRows(Protocol):
    """Runs rows through the experts of one layer.

    `slots`: int64 [experts], the place of each expert among them, on the rows' device; None: by their numbers.
    """

    @property
    def slots(self) -> Tensor | None: ...

    def __call__(self, x_PE: Tensor, counts: Sequence[int]) -> Tensor:
        """Rows [P, E] to rows [P, E]: the first `counts[0]` by the expert in slot 0, the next by that in slot 1, ..."""
        ...


class ExpertHost(Protocol):
    """Where a model's experts are. A model that is built asks once for each layer that has some."""

    def place(self, layer: int, count: int, make: MakeExpert, parameters: Parameters) -> ExpertRows:
        """Make the experts that belong here of this layer's `count`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class GroupedExperts:
    """Experts of a layer in this process, one in each slot."""

    experts: Sequence[RowMap]
    slots: Tensor | None = None

    def __call__(self, x_PE: Tensor, counts: Sequence[int]) -> Tensor:
        out_PE = torch.empty_like(x_PE)
        start = 0
        for expert, count in zip(self.experts, counts, strict=True):
            if count:
                out_PE[start : start + count] = expert(x_PE[start : start + count])
                start += count
        return out_PE


class AllHere:
    """See `ExpertHost`."""

    def place(self, layer: int, count: int, make: MakeExpert, parameters: Parameters) -> ExpertRows:
        return GroupedExperts([make(number, parameters) for number in range(count)])


@dataclass(frozen=True, slots=True, eq=False)
class MixtureOfExperts:
    """`shared`: a feed-forward that all rows go through beside their experts."""

    router: Router
    experts: ExpertRows
    shared: RowMap | None = None

    def __call__(self, x_TE: Tensor) -> Tensor:
        weights_TK, experts_TK = self.router(x_TE)
        slots_TK = experts_TK if self.experts.slots is None else self.experts.slots[experts_TK]
        flat = slots_TK.view(-1)
        order = flat.argsort(stable=True)  # places (row, choice) by expert, and by row within one
        counts = torch.bincount(flat, minlength=self.router.routing.experts).tolist()
        sorted_PE = self.experts(x_TE[order // slots_TK.shape[1]], counts)
        chosen_PE = torch.empty_like(sorted_PE)
        chosen_PE[order] = sorted_PE
        out_TE = (chosen_PE.view(*slots_TK.shape, -1) * weights_TK[..., None]).sum(1).to(x_TE.dtype)
        return out_TE if self.shared is None else out_TE.add_(self.shared(x_TE))


@dataclass(frozen=True, slots=True, eq=False)
class WeighedExpert:
    """A shared expert whose result each row weighs by the sigmoid of one product of its own (`gate`: E items to 1)."""

    expert: RowMap
    gate: RowMap

    def __call__(self, x_TE: Tensor) -> Tensor:
        # In float64, rounded back: in float32 torch's way for a few numbers gives other last bits than that for many.
        return self.expert(x_TE).mul_(self.gate(x_TE).double().sigmoid().to(x_TE.dtype))
