"""Mixtures of experts against their definition, one row and one expert at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asyncpage.models.experts import GroupedExperts, MixtureOfExperts
from asyncpage.models.layers import Linear
from asyncpage.models.router import Router, Routing

ROWS, WIDTH, EXPERTS = 40, 12, 8


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


MATRICES = numbers(EXPERTS, WIDTH, WIDTH, seed=1)
GATE = numbers(EXPERTS, WIDTH, seed=2)
ROUTINGS = {
    "two of eight": Routing(EXPERTS, 2),
    "one, as it is": Routing(EXPERTS, 1),
    "all, adding up": Routing(EXPERTS, EXPERTS, renormalises=True),
    "three, scaled": Routing(EXPERTS, 3, scale=16.0),
    "two of two groups": Routing(EXPERTS, 2, groups=4, kept_groups=2),
}


def mixture(routing: Routing) -> MixtureOfExperts:
    experts = [lambda x_TE, weight=weight: (x_TE @ weight).tanh() for weight in MATRICES]
    return MixtureOfExperts(Router(Linear(GATE), routing), GroupedExperts(experts), shared=lambda x_TE: x_TE * 3)


def definition(row: Tensor, routing: Routing) -> Tensor:
    chances = (GATE.double() @ row.double()).exp()
    chances /= chances.sum()
    size = EXPERTS // routing.groups
    best = sorted(range(routing.groups), key=lambda group: -float(chances[group * size : (group + 1) * size].max()))
    open_to = [index for index in range(EXPERTS) if index // size in best[: routing.kept_groups]]
    chosen = sorted(open_to, key=lambda index: -float(chances[index]))[: routing.top_k]
    total = float(sum(chances[index] for index in chosen)) if routing.renormalises else 1.0
    parts = [chances[index] / total * (row.double() @ MATRICES[index].double()).tanh() for index in chosen]
    return sum(parts) * routing.scale + row.double() * 3


@pytest.mark.parametrize("name", ROUTINGS)
def test_rows_are_the_weighed_sum_over_their_own_experts(name: str) -> None:
    x_TE, routing = numbers(ROWS, WIDTH), ROUTINGS[name]
    true_TE = torch.stack([definition(row, routing) for row in x_TE])
    assert (mixture(routing)(x_TE) - true_TE).abs().max() < 1e-5 * routing.scale


def test_a_row_comes_out_the_same_alone_and_among_others() -> None:
    x_TE, experts = numbers(ROWS, WIDTH), mixture(ROUTINGS["two of eight"])
    alone = torch.cat([experts(row[None]) for row in x_TE])
    assert (experts(x_TE) - alone).abs().max() < 1e-6
    assert (experts(x_TE.flip(0)).flip(0) - alone).abs().max() < 1e-6


@pytest.mark.parametrize("name", ROUTINGS)
def test_a_row_of_nan_spoils_no_other(name: str) -> None:
    x_TE, experts = numbers(ROWS, WIDTH), mixture(ROUTINGS[name])
    sound = experts(x_TE)
    x_TE[7] = torch.nan
    out = experts(x_TE)
    assert out[7].isnan().all()
    others = [index for index in range(ROWS) if index != 7]
    assert (out[others] - sound[others]).abs().max() < 1e-5


def test_experts_without_rows_are_left_alone() -> None:
    def forbidden(x_TE: Tensor) -> Tensor:
        raise AssertionError(f"asked for {len(x_TE)} rows")

    experts = GroupedExperts([forbidden, lambda x_TE: x_TE + 1, forbidden])
    assert torch.equal(experts(torch.zeros(3, 2), [0, 3, 0]), torch.ones(3, 2))


def test_narrow_rows_choose_by_float32_weights() -> None:
    x_TE = numbers(ROWS, WIDTH).bfloat16()
    weights, chosen = Router(Linear(GATE), ROUTINGS["two of eight"])(x_TE)
    true, expected = (x_TE.float() @ GATE.T).softmax(-1).topk(2)
    assert weights.dtype == torch.float32
    assert torch.equal(chosen, expected)
    assert (weights - true).abs().max() < 1e-6
