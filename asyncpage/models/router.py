"""Chooses the experts of each row: the most probable ones of a softmax over all.

A mixture of experts (`experts`) calls it with the rows that its experts will see.

INVARIANT: everything is computed in float32 and row by row; a row of NaN gets some experts, and weights of NaN.

Source: Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer", 2017; groups:
DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model", 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncpage.models.layers import RowMap


@dataclass(frozen=True, slots=True)
class Routing:
    """How `top_k` of `experts` are chosen for each row, and what their weights are.

    `renormalises`: the weights are made to add up to one. `scale`: what they are multiplied by. With `groups` above
    one only experts of the `kept_groups` groups with the most probable expert can be chosen.
    """

    experts: int
    top_k: int
    renormalises: bool = False
    scale: float = 1.0
    groups: int = 1
    kept_groups: int = 1


class Router:
    """`linear`: rows [T, E] to [T, experts], float32."""

    def __init__(self, linear: RowMap, routing: Routing) -> None:
        self._linear, self.routing = linear, routing

    def __call__(self, x_TE: Tensor) -> tuple[Tensor, Tensor]:
        """For each row its experts' weights, float32 [T, top_k], and their numbers, int64 [T, top_k]."""
        routing = self.routing
        chances_TX = self._linear(x_TE.float()).softmax(-1)
        if routing.groups > 1:
            chances_TX = self._in_kept_groups(chances_TX)
        weights_TK, experts_TK = chances_TX.topk(routing.top_k, dim=-1)
        if routing.renormalises:
            weights_TK /= weights_TK.sum(-1, keepdim=True)
        return weights_TK.mul_(routing.scale), experts_TK

    def _in_kept_groups(self, chances_TX: Tensor) -> Tensor:
        """The same with zeros in all other groups."""
        grouped_TGX = chances_TX.view(len(chances_TX), self.routing.groups, -1)
        kept = grouped_TGX.amax(-1).topk(self.routing.kept_groups, dim=-1).indices
        is_out_TG = torch.ones(grouped_TGX.shape[:-1], dtype=torch.bool, device=kept.device).scatter_(-1, kept, False)
        return grouped_TGX.masked_fill(is_out_TG[..., None], 0.0).flatten(-2)
