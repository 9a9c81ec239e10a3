"""Vectors of whole prompts from hidden states, chunk by chunk, for the rows that are to be pooled.

The runner tells it of rows and, after each forward pass, hands over the step's hidden states.

INVARIANT: a row's vector is made once, from the states of its own tokens: of all of them where a mean is wanted,
however its prompt was cut.
"""

from __future__ import annotations

import numpy as np
import torch

from asyncpage.errors import ProtocolError
from asyncpage.executor.batch import PersistentBatch
from asyncpage.messages import Int32, NewRow, Pooled, Pooling

NOT_NUMBERS = "the model gave hidden states that are not numbers (NaN or infinite), so there is no embedding"


class Pooler:
    """The rows that are to be pooled."""

    def __init__(self) -> None:
        self._poolings: dict[int, Pooling] = {}
        self._sums: dict[int, torch.Tensor] = {}  # float64 [E], of the chunks before: no rounding tells how it was cut

    def clear(self) -> None:
        """Forget every row."""
        self._poolings.clear()
        self._sums.clear()

    def add(self, new: NewRow) -> None:
        """A request moves in. Errors: `ProtocolError` when states are wanted that will not be computed here."""
        if new.pooling is None:
            return
        if new.computed and new.pooling.kind != "last":
            raise ProtocolError(
                f"row {new.row} is to be pooled by {new.pooling.kind} and {new.computed} of its tokens come from the "
                "cache, which has no hidden states"
            )
        self._poolings[new.row] = new.pooling

    def remove(self, row: int) -> None:
        """The request has left the row."""
        self._poolings.pop(row, None)
        self._sums.pop(row, None)

    def pool(
        self, batch: PersistentBatch, rows: Int32, counts: Int32, starts: Int32, hidden_TE: torch.Tensor
    ) -> tuple[tuple[Pooled, ...], dict[int, str]]:
        """The vectors of rows whose last token this step has computed, and rows that have none, with the reason.

        Both are out of `batch` from then on: they sample nothing. `starts` [R + 1]: where each row's tokens lie in
        `hidden_TE`; computed counts are those before the step.
        """
        pooled: list[Pooled] = []
        failed: dict[int, str] = {}
        if not self._poolings:
            return (), failed
        for row, count, first in zip(rows.tolist(), counts.tolist(), starts.tolist(), strict=False):
            pooling = self._poolings.get(row)
            if pooling is None:
                continue
            start, known = int(batch.computed[row]), int(batch.known[row])
            vector_E = self._vector(row, pooling, start, start + count == known, hidden_TE[first : first + count])
            if vector_E is None:
                continue
            batch.is_out[row] = True
            embedding = as_embedding(vector_E, pooling)
            if embedding is None:
                failed[row] = NOT_NUMBERS
            else:
                pooled.append(Pooled(row, embedding))
        return tuple(pooled), failed

    def _vector(
        self, row: int, pooling: Pooling, start: int, is_last: bool, hidden_CE: torch.Tensor
    ) -> torch.Tensor | None:
        """The vector of a row once it has its last chunk; what the chunks before it tell is kept."""
        if pooling.kind == "last":
            return hidden_CE[-1] if is_last else None
        known = self._sums.pop(row, None)
        if pooling.kind == "cls":
            known = hidden_CE[0].double() if known is None else known
        else:
            chunk = hidden_CE.sum(0, dtype=torch.float64)
            known = chunk if known is None else known + chunk
        if not is_last:
            self._sums[row] = known
            return None
        return known if pooling.kind == "cls" else known / (start + len(hidden_CE))


def pool_whole(hidden_PE: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """One vector [E] of all of a prompt's states."""
    match pooling.kind:
        case "last":
            return hidden_PE[-1]
        case "cls":
            return hidden_PE[0]
        case "mean":
            return hidden_PE.sum(0, dtype=torch.float64) / len(hidden_PE)


def as_embedding(vector_E: torch.Tensor, pooling: Pooling) -> bytes | None:
    """float32 little-endian, of length 1 where that is asked for; None for what is not numbers."""
    vector = vector_E.double().cpu().numpy()
    if not np.isfinite(vector).all():
        return None
    length = float(np.linalg.norm(vector)) if pooling.is_normalized else 0.0
    return (vector / length if length else vector).astype("<f4").tobytes()
