"""How long a step takes: a linear function of what it does, with one step up from a single token to several.

The simulated executor asks it for every step; `asyncpage simulate --fit` finds the coefficients.

INVARIANT: no coefficient is negative, so a step that does more never takes less.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from asyncpage.errors import UsageError
from asyncpage.messages import Int32


@dataclass(frozen=True, slots=True)
class StepLatency:
    """Seconds a step, a computed token, a token of context read, and a row.

    `gap_s`, `gap_per_row_s`: what the control plane takes between an answer and the next step; it shows only where
    one step is in flight at a time. `per_pair_s`: of attention inside a chunk, see `chunk_pairs`. `batch_s`: more for
    a step of several tokens, which multiplies matrices where a single one is a vector; with torch on a CPU it is about
    as much as the base, and without it a step of one row was told 1.3 to 2 times too long.
    """

    base_s: float = 0.0
    per_token_s: float = 0.0
    per_context_s: float = 0.0
    per_row_s: float = 0.0
    gap_s: float = 0.0
    gap_per_row_s: float = 0.0
    per_pair_s: float = 0.0
    batch_s: float = 0.0

    def check(self) -> None:
        """Errors: `UsageError` naming a coefficient that is negative or no number."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < float("inf"):
                raise UsageError(f"{field.name} of a latency model must be 0 or more seconds, got {value}")

    def step_s(self, *, tokens: float, context: float, rows: float, pairs: float) -> float:
        """Seconds of one step. `context`: for each row the tokens it attends to at its last token, summed.

        `pairs`: as `chunk_pairs` counts them.
        """
        return (
            self.base_s
            + (self.batch_s if tokens > 1 else 0.0)
            + self.per_token_s * tokens
            + self.per_context_s * context
            + self.per_row_s * rows
            + self.per_pair_s * pairs
        )

    def delay_s(self, rows: int) -> float:
        """Seconds between an answer about `rows` rows and the step that follows it."""
        return self.gap_s + self.gap_per_row_s * rows


def chunk_pairs(computed: Int32, counts: Int32) -> int:
    """Pairs of a token and one it attends to, of all tokens of a step but each row's last, whose are the context.

    `computed` [R]: tokens of each row that are computed when the step is done; `counts` [R]: how many of them in it.
    0 for a step that only decodes, so that its times say nothing about long prompts.
    """
    # Of n tokens behind p others, the first n - 1 attend to p + 1, ..., p + n - 1 tokens.
    wide = counts.astype(np.int64)
    return int(((wide - 1) * (2 * computed - wide)).sum()) // 2
