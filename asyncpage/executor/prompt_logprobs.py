"""Log-probabilities of prompt tokens, chunk by chunk, for the rows that ask.

The runner tells it of rows and, after each forward pass, hands over the step's hidden states: the one at position p
tells of the token at p + 1.

INVARIANT: logits exist for one slice of positions at a time, however long the prompt is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from asyncpage.executor import logprobs
from asyncpage.executor.batch import PersistentBatch
from asyncpage.messages import Int32, Logprobs, NewRow, PromptLogprobs

NOT_NUMBERS = "the model gave logits that are not numbers (NaN or infinite) for a token of the prompt"


class PromptMeter:
    """`logits`: the model's, of hidden states [P, E]; `slice_positions`: how many of them at once."""

    def __init__(self, logits: Callable[[torch.Tensor], torch.Tensor], slice_positions: int) -> None:
        self._logits = logits
        self._slice = slice_positions
        self._asks: dict[int, int] = {}

    def clear(self) -> None:
        """Forget every row."""
        self._asks.clear()

    def add(self, new: NewRow, known: int) -> None:
        """A request moves in. One that brings output has been through its prompt, which was measured then."""
        if new.sampling.prompt_logprobs is not None and known == new.prompt_tokens:
            self._asks[new.row] = new.sampling.prompt_logprobs

    def remove(self, row: int) -> None:
        """The request has left the row."""
        self._asks.pop(row, None)

    def measure(
        self, batch: PersistentBatch, rows: Int32, counts: Int32, starts: Int32, hidden_TE: torch.Tensor
    ) -> tuple[tuple[PromptLogprobs, ...], tuple[int, ...]]:
        """What this step tells of the prompts of its rows, and the rows whose logits are not numbers.

        `starts` [R + 1]: where each row's tokens lie in `hidden_TE`; computed counts are those before the step.
        """
        if not self._asks:
            return (), ()
        found, failed = [], []
        for row, count, first in zip(rows.tolist(), counts.tolist(), starts.tolist(), strict=False):
            if row not in self._asks:
                continue
            start = int(batch.computed[row]) + 1
            tokens = batch.tokens[row, start : min(start + count, int(batch.prompts[row]))].copy()
            if not len(tokens):
                continue
            columns = self._columns(hidden_TE[first : first + len(tokens)], tokens, self._asks[row])
            if columns is None:
                failed.append(row)
            else:
                found.append(PromptLogprobs(row, start, tokens, columns))
        return tuple(found), tuple(failed)

    def _columns(self, hidden_PE: torch.Tensor, tokens: Int32, k: int) -> Logprobs | None:
        parts = []
        for at in range(0, len(tokens), self._slice):
            part = slice(at, at + self._slice)
            raw_PV = torch.log_softmax(self._logits(hidden_PE[part]), dim=1)
            if bool(raw_PV.sum(dim=1).isnan().any()):  # one that is not a number leaves none in its row
                return None
            parts.append(logprobs.measure(raw_PV, tokens[part], k))
        return logprobs.join(parts)
