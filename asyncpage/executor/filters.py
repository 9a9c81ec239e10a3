"""Which tokens of one row may be drawn: min_p, then top_k, then top_p, each over what the one before it left.

The sampler asks for rows that set any of them. Wide passes only find a superset of what can survive; what survives
is decided on that handful in float64, so that it does not depend on how a wide pass was vectorised.

INVARIANT: at least the most likely token survives; at equal logits the lowest ids survive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from asyncpage.core.sampling import SamplingParams
from asyncpage.executor import extremes

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

_SLACK = 1e-3  # in nats, a hundred times a wide pass's rounding: a superset must not lose a borderline token
_NUCLEUS_GUESSES = (256, 4096)
_SORTED_AT_ONCE = 512  # a sort this short costs less than another cut


@dataclass(frozen=True, slots=True)
class Filters:
    """The three settings of one request; each has a value that keeps everything: 0, 0 and 1."""

    min_p: float
    top_k: int
    top_p: float

    @classmethod
    def of(cls, sampling: SamplingParams) -> Filters | None:
        """None when the request keeps everything."""
        filters = cls(sampling.min_p, sampling.top_k, sampling.top_p)
        return filters if filters.min_p > 0 or filters.top_k > 0 or filters.top_p < 1 else None

    def survivors(self, logits_V: torch.Tensor, highest: float, temperature: float) -> tuple[Int64, Float64]:
        """Ids that may be drawn, in no order, and their probabilities relative to the most likely token's.

        `highest` is the row's largest logit, finite; probabilities are those of softmax(logits / temperature).
        min_p keeps what has at least that share of the most likely token's probability; top_p the fewest most likely
        tokens that together reach it, renormalised over what min_p and top_k left.
        """
        width = len(logits_V)
        top_k = self.top_k if 0 < self.top_k < width else 0
        lowest = highest + temperature * math.log(self.min_p) if self.min_p > 0 else -math.inf
        total = None
        if top_k:
            floor = max(float(extremes.floor_of_top(logits_V[None], top_k)[0]), lowest - _SLACK)
            ids = extremes.reaching(logits_V[None], np.array([floor], dtype=np.float32))
        elif self.min_p > 0:
            ids = extremes.reaching(logits_V[None], np.array([lowest - _SLACK], dtype=np.float32))
        else:
            ids, total = self._nucleus_superset(logits_V, highest, temperature)
        logits = extremes.at(logits_V[None], ids).astype(np.float64)
        is_kept = (logits >= lowest) & (logits > -math.inf)  # what is forbidden stays out, whatever the floor was
        if not is_kept.all():
            ids, logits = ids[is_kept], logits[is_kept]
        if top_k:
            order = np.argsort(-logits, kind="stable")[:top_k]
            ids, logits = ids[order], logits[order]
        weights = np.exp((logits - highest) / temperature)
        if self.top_p < 1:
            places = _fewest(weights, ids, self.top_p * (float(weights.sum()) if total is None else total))
            ids, weights = ids[places], weights[places]
        return ids, weights

    def _nucleus_superset(self, logits_V: torch.Tensor, highest: float, temperature: float) -> tuple[Int64, float]:
        """Ascending ids that hold the nucleus, and the weight of all tokens relative to the most likely one's.

        Tokens below the share (1 - top_p) / V of the whole cannot sum to what the nucleus leaves out, so the rest
        holds it. Usually a far higher floor does too, which is cheap to try: what costs is every token held.
        """
        weights = torch.sub(logits_V, highest).div_(temperature).exp_()[None]
        total = float(weights.sum(dtype=torch.float64))
        for parts in (*_NUCLEUS_GUESSES, 2 * len(logits_V)):
            floor = np.array([(1 - self.top_p) * total / parts], dtype=np.float32)
            ids = extremes.reaching(weights, floor)
            if float(extremes.at(weights, ids).sum(dtype=np.float64)) > self.top_p * total * (1 + _SLACK):
                break
        return ids, total


def _fewest(weights: Float64, ids: Int64, target: float) -> Int64:
    """Places of the fewest heaviest tokens whose weights reach `target`, the lowest ids first among equals.

    All of them when they do not reach it, at least one always. Long runs are halved by weight until what holds the
    border is short: a flat distribution's nucleus is thousands of tokens, and sorting them all took 10 times longer.
    """
    open_places = np.arange(len(weights))
    taken: list[Int64] = []
    reached = 0.0
    while len(open_places) > _SORTED_AT_ONCE:
        values = weights[open_places]
        is_heavy = values > math.sqrt(float(values.max()) * float(values.min()))
        heavy = open_places[is_heavy]
        if not 0 < len(heavy) < len(open_places):
            break
        mass = float(weights[heavy].sum())
        if reached + mass >= target:
            open_places = heavy
        else:
            reached += mass
            taken.append(heavy)
            open_places = open_places[~is_heavy]
    order = open_places[np.lexsort((ids[open_places], -weights[open_places]))]
    sums = reached + np.cumsum(weights[order])
    taken.append(order[: int(np.searchsorted(sums, target, side="left")) + 1])
    return np.concatenate(taken)
