"""Finds the coefficients of a latency model in measured steps.

`asyncpage simulate --fit` reads the steps from a journal and asks here.

INVARIANT: the coefficients are the non-negative ones with the least sum of squared errors, exactly: with this few
of them, every choice of those that are zero is tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from asyncpage.core.step_latency import StepLatency
from asyncpage.errors import UsageError

Float64 = NDArray[np.float64]

_LEAST_STEPS = 20  # fewer say nothing about six coefficients


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Measured steps in columns [S]: what `StepLatency.step_s` asks for, and seconds from sending to answer.

    `gap_rows`, `gap_seconds` [G]: for answers that a step followed while none was in flight, the rows of the answer
    and the time until that step was sent.
    """

    tokens: Float64
    context: Float64
    rows: Float64
    pairs: Float64
    seconds: Float64
    gap_rows: Float64
    gap_seconds: Float64


@dataclass(frozen=True, slots=True)
class Fit:
    """A latency model and how well it tells the steps it was made from.

    `explained`: share of the variance (R squared). `off_s`: mean absolute error of a step. `total_ratio`: modelled
    time of all steps over the measured one.
    """

    latency: StepLatency
    steps: int
    explained: float
    off_s: float
    total_ratio: float


def fit_latency(steps: Steps) -> Fit:
    """Errors: `UsageError` when there are too few steps."""
    count = len(steps.seconds)
    if count < _LEAST_STEPS:
        raise UsageError(f"a latency model needs at least {_LEAST_STEPS} steps, found {count}; record for longer")
    is_batch = (steps.tokens > 1).astype(np.float64)
    if is_batch.all():
        is_batch[:] = 0  # it would be the base: no step tells them apart
    features = np.stack((np.ones(count), steps.tokens, steps.context, steps.rows, steps.pairs, is_batch), axis=1)
    found = nonnegative_least_squares(features, steps.seconds)
    gap = np.zeros(2)
    if len(steps.gap_seconds):
        gap = nonnegative_least_squares(
            np.stack((np.ones(len(steps.gap_rows)), steps.gap_rows), axis=1), steps.gap_seconds
        )
    base_s, per_token_s, per_context_s, per_row_s, per_pair_s, batch_s = found.tolist()
    gap_s, gap_per_row_s = gap.tolist()
    latency = StepLatency(base_s, per_token_s, per_context_s, per_row_s, gap_s, gap_per_row_s, per_pair_s, batch_s)
    modelled = modelled_s(latency, steps)
    errors = modelled - steps.seconds
    spread = float(np.sum((steps.seconds - steps.seconds.mean()) ** 2))
    return Fit(
        latency=latency,
        steps=count,
        explained=1 - float(np.sum(errors**2)) / spread if spread else 1.0,
        off_s=float(np.mean(np.abs(errors))),
        total_ratio=float(modelled.sum() / steps.seconds.sum()),
    )


def modelled_s(latency: StepLatency, steps: Steps) -> Float64:
    """The seconds [S] that `latency` says of measured steps."""
    columns = zip(steps.tokens.tolist(), steps.context.tolist(), steps.rows.tolist(), steps.pairs.tolist(), strict=True)
    return np.array([latency.step_s(tokens=t, context=c, rows=r, pairs=p) for t, c, r, p in columns])


def nonnegative_least_squares(features: Float64, targets: Float64) -> Float64:
    """The x >= 0 [K] that minimises |features x - targets|, features being [S, K] with K at most 8.

    A minimum is a plain least-squares solution of the columns in which it is positive; all sets of columns are tried.
    """
    width = features.shape[1]
    if width > 8:
        raise ValueError(f"{width} columns have {2**width} sets of them; 8 columns are the most")
    # Columns of equal length, reduced to their triangle: the same minimum from K rows.
    lengths = np.maximum(np.linalg.norm(features, axis=0), 1e-300)
    _, triangle = np.linalg.qr(np.column_stack((features / lengths, targets)))
    matrix, goal = triangle[:, :width], triangle[:, width]
    best, least = np.zeros(width), float(goal @ goal)
    for size in range(1, width + 1):
        for chosen in combinations(range(width), size):
            part, *_ = np.linalg.lstsq(matrix[:, chosen], goal, rcond=None)
            off = matrix[:, chosen] @ part - goal
            if part.min() >= 0 and float(off @ off) < least:
                best, least = np.zeros(width), float(off @ off)
                best[list(chosen)] = part
    found: Float64 = best / lengths
    return found
