"""Drafts from a smaller model with the same vocabulary, which runs ahead of the great one.

Its keys and values lie beside the great model's, in blocks of the same ids, so prefixes are shared, copied, saved and
preempted with them. It computes a prompt with the great model, and what comes after when drafts are asked for: where
they do not pay it costs nothing.

The runner asks it before every forward pass. Method: speculative decoding (Leviathan et al. 2023, Chen et al. 2023).

INVARIANT: what it has computed of a row is never more than what the row has of it: drafts that fell are computed over.
A block that was published before this caught up holds a gap, which costs those who share it drafts and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from asyncpage.executor.attention import PagedAttention
from asyncpage.executor.batch import BatchShape, PersistentBatch
from asyncpage.executor.inputs import InputBuffers
from asyncpage.executor.speculation.drafting import Drafting, passes
from asyncpage.executor.speculation.proposer import Drafts, no_drafts
from asyncpage.messages import Int32, NewRow
from asyncpage.models.model import Model


class DraftModel:
    """`shape`: the batch's. `tables`: for each layer group of `model`, the group of the batch whose blocks it uses.

    `vocab_size`: the great model's; ids that only one of the two has, as some pad their tables, are never drafted.
    """

    def __init__(
        self, model: Model, attention: PagedAttention, shape: BatchShape, tables: Sequence[int], vocab_size: int
    ) -> None:
        self.caches: Sequence[PagedAttention] = (attention,)
        self._model = model
        self._attention = attention
        # A row may be a token behind, as the last of drafts that all stood was not computed here.
        self._most_tokens = shape.max_tokens + shape.max_rows
        self._inputs = InputBuffers(replace(shape, max_tokens=self._most_tokens), attention.device, tables)
        self._drafting = Drafting(vocab_size, shape.max_rows, attention.device)
        self._vocab_size = vocab_size

    def clear(self) -> None:
        self._drafting.clear()

    def add(self, new: NewRow) -> None:
        self._drafting.add(new)

    def remove(self, row: int) -> None:
        self._drafting.remove(row)

    def propose(self, batch: PersistentBatch, rows: Int32, counts: Int32, asked: Int32) -> Drafts:
        ends = batch.computed[rows] + counts
        asked = np.clip(asked, 0, np.maximum(self._model.max_model_len - ends, 0))
        is_prompt = (batch.computed[rows] < batch.prompts[rows]) & (ends <= self._model.max_model_len)
        chosen = np.flatnonzero((asked > 0) | is_prompt)
        if not len(chosen):
            return no_drafts(len(rows))
        last_RE = self._catch_up(batch, rows[chosen], ends[chosen])
        drafting = np.flatnonzero(asked[chosen] > 0)
        if not len(drafting):
            return no_drafts(len(rows))
        index = torch.from_numpy(drafting).to(last_RE.device)

        def advance(own: Int32, places: Int32, states_SE: torch.Tensor) -> torch.Tensor:
            self._drafting.computed[own] = places + 1
            return self._forward(batch, own, np.ones(len(own), dtype=np.int32), places)[0]

        return self._drafting.draw(batch, rows, asked, chosen[drafting], last_RE[index], self._logits, advance)

    def observe(
        self, batch: PersistentBatch, rows: Int32, begins: Int32, starts: Int32, hidden_TE: torch.Tensor
    ) -> None:
        """The great model's states are nothing to it."""

    def _catch_up(self, batch: PersistentBatch, rows: Int32, ends: Int32) -> torch.Tensor:
        """Compute each of `rows` [R] up to `ends` [R]; returns the state at each row's last token [R, E]."""
        begins = np.minimum(self._drafting.computed[rows], batch.computed[rows])
        last_RE: torch.Tensor | None = None
        for part in passes(begins, ends, self._most_tokens):
            hidden_TE, starts = self._forward(batch, rows[part.members], part.counts, part.begins)
            if last_RE is None:
                last_RE = hidden_TE.new_empty((len(rows), hidden_TE.shape[1]))
            places = torch.from_numpy((starts[part.ended + 1] - 1).astype(np.int64)).to(hidden_TE.device)
            last_RE[torch.from_numpy(part.members[part.ended]).to(hidden_TE.device)] = hidden_TE[places]
        assert last_RE is not None  # there was a token to compute, and so a pass
        self._drafting.computed[rows] = ends
        return last_RE

    def _forward(self, batch: PersistentBatch, rows: Int32, counts: Int32, begins: Int32) -> tuple[torch.Tensor, Int32]:
        inputs = self._inputs.pack(batch, rows, counts, begins)
        self._attention.plan(inputs.batches)
        tokens = inputs.tokens.clamp(max=self._model.vocab_size - 1)
        return self._model.forward(tokens, inputs.positions, self._attention.attend), inputs.starts

    def _logits(self, hidden_SE: torch.Tensor) -> torch.Tensor:
        """float32 [S, vocab_size of the great model]."""
        logits_SV = self._model.logits(hidden_SE)
        missing = self._vocab_size - logits_SV.shape[1]
        if missing > 0:
            return torch.nn.functional.pad(logits_SV, (0, missing), value=-torch.inf)
        return logits_SV[:, : self._vocab_size].contiguous()
