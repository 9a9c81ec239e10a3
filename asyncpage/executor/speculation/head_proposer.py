"""Drafts from a head over the model's states (`draft_head`).

Its keys and values lie beside the model's, in blocks of the same ids. Behind each forward pass the runner shows it the
model's states; it keeps the last of each row, as many as the head looks back at, and computes nothing. When a row is
asked for drafts the head catches up with it: it never computes what has left its window meanwhile.

INVARIANT: behind a row's computed tokens it has one state more than it needs: that of place t serves the token at
t + 1, which is known then. Before the first of a row (its prefix may be another's) the state counts as zero.
A block that was published before this caught up holds a gap, which costs those who share it drafts and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from asyncpage.executor.attention import PagedAttention
from asyncpage.executor.batch import BatchShape, PersistentBatch
from asyncpage.executor.inputs import InputBuffers
from asyncpage.executor.speculation.draft_head import DraftHead, Embed
from asyncpage.executor.speculation.drafting import Drafting, passes
from asyncpage.executor.speculation.proposer import Drafts, no_drafts
from asyncpage.messages import Int32, NewRow


class HeadProposer:
    """`shape`: the batch's. `table`: the group of the batch whose blocks the head uses. `embed`: the model's."""

    def __init__(self, head: DraftHead, embed: Embed, attention: PagedAttention, shape: BatchShape, table: int) -> None:
        self.caches: Sequence[PagedAttention] = (attention,)
        self._head, self._embed, self._attention = head, embed, attention
        self._most_tokens = shape.max_tokens + shape.max_rows
        self._inputs = InputBuffers(replace(shape, max_tokens=self._most_tokens), attention.device, (table,))
        self._drafting = Drafting(head.vocab_size, shape.max_rows, attention.device)
        # The state that goes with the token at place t is at t modulo the window.
        self._states_RWE = torch.zeros(
            (shape.max_rows, head.window, head.hidden_size), dtype=head.dtype, device=attention.device
        )

    def clear(self) -> None:
        self._drafting.clear()

    def add(self, new: NewRow) -> None:
        self._drafting.add(new)
        more = len(self._drafting.computed) - len(self._states_RWE)
        if more:
            rooms = self._states_RWE.new_zeros((more, *self._states_RWE.shape[1:]))
            self._states_RWE = torch.cat((self._states_RWE, rooms))
        self._states_RWE[new.row, new.computed % self._head.window] = 0.0

    def remove(self, row: int) -> None:
        self._drafting.remove(row)

    def propose(self, batch: PersistentBatch, rows: Int32, counts: Int32, asked: Int32) -> Drafts:
        """A row with more than its last token to compute has not the state that its next draft begins with."""
        asked = np.clip(asked, 0, np.maximum(self._head.max_model_len - batch.known[rows], 0))
        drafting = np.flatnonzero((asked > 0) & (counts == 1))
        if not len(drafting):
            return no_drafts(len(rows))
        states_SE = self._catch_up(batch, rows[drafting])
        ones = np.ones(len(drafting), dtype=np.int32)

        def advance(own: Int32, places: Int32, states_SE: torch.Tensor) -> torch.Tensor:
            return self._forward(batch, own, ones[: len(own)], places, states_SE)[0]

        return self._drafting.draw(batch, rows, asked, drafting, states_SE, self._head.logits, advance)

    def observe(
        self, batch: PersistentBatch, rows: Int32, begins: Int32, starts: Int32, hidden_TE: torch.Tensor
    ) -> None:
        window = self._head.window
        ends = np.minimum(batch.computed[rows], batch.known[rows] - 1)  # of one that is out more may be computed
        firsts = np.maximum(begins, ends - window)
        counts = np.maximum(ends - firsts, 0)
        owners = np.repeat(np.arange(len(rows)), counts)
        if not len(owners):
            return
        places = firsts[owners] + np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]
        sources = (starts[:-1] - begins)[owners] + places
        states_NE = hidden_TE[self._index(sources)]
        self._states_RWE[self._index(rows[owners]), self._index((places + 1) % window)] = states_NE

    def _catch_up(self, batch: PersistentBatch, rows: Int32) -> torch.Tensor:
        """Compute each of `rows` [R] up to what it knows; returns what is predicted at each one's last token [R, E]."""
        window, ends = self._head.window, batch.known[rows]
        begins = np.minimum(np.maximum(self._drafting.computed[rows], ends - window), ends - 1)
        last_RE = self._states_RWE.new_empty((len(rows), self._head.hidden_size))
        for part in passes(begins, ends, self._most_tokens):
            own = rows[part.members]
            owners = np.repeat(np.arange(len(own)), part.counts)
            places = np.arange(len(owners)) + (part.begins + part.counts - np.cumsum(part.counts))[owners]
            states_TE = self._states_RWE[self._index(own[owners]), self._index(places % window)]
            predicted_TE, starts = self._forward(batch, own, part.counts, part.begins, states_TE)
            last_RE[self._index(part.members[part.ended])] = predicted_TE[self._index(starts[part.ended + 1] - 1)]
        self._drafting.computed[rows] = ends
        return last_RE

    def _forward(
        self, batch: PersistentBatch, rows: Int32, counts: Int32, begins: Int32, states_TE: torch.Tensor
    ) -> tuple[torch.Tensor, Int32]:
        inputs = self._inputs.pack(batch, rows, counts, begins)
        self._attention.plan(inputs.batches)
        embedded_TE = self._embed(inputs.tokens)
        return self._head.forward(embedded_TE, states_TE, inputs.positions, self._attention.attend), inputs.starts

    def _index(self, places: NDArray[np.signedinteger]) -> torch.Tensor:
        return torch.from_numpy(places.astype(np.int64)).to(self._attention.device)
