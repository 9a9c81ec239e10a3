"""How long a step takes, as a linear function of what it does.

The simulated executor asks it for every step; `asyncpage simulate --fit` finds the coefficients.

INVARIANT: no coefficient is negative, so a step that does more never takes less.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from asyncpage.errors import UsageError


@dataclass(frozen=True, slots=True)
class StepLatency:
    """Seconds a step, a computed token, a token of context read, and a row.

    `gap_s`, `gap_per_row_s`: what the control plane takes between an answer and the next step; it shows only where
    one step is in flight at a time.
    """

    base_s: float = 0.0
    per_token_s: float = 0.0
    per_context_s: float = 0.0
    per_row_s: float = 0.0
    gap_s: float = 0.0
    gap_per_row_s: float = 0.0

    def check(self) -> None:
        """Errors: `UsageError` naming a coefficient that is negative or no number."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < float("inf"):
                raise UsageError(f"{field.name} of a latency model must be 0 or more seconds, got {value}")

    def step_s(self, *, tokens: int, context: int, rows: int) -> float:
        """Seconds of one step. `context`: for each row the tokens it attends to at its last token, summed."""
        return self.base_s + self.per_token_s * tokens + self.per_context_s * context + self.per_row_s * rows

    def delay_s(self, rows: int) -> float:
        """Seconds between an answer about `rows` rows and the step that follows it."""
        return self.gap_s + self.gap_per_row_s * rows
