"""Draws drafts for rows, one after another, as the rows' own tokens will be drawn.

What predicts (a draft model, a head) gives the logits; each draft is drawn with the noise that the row's own token of
that number will be drawn with, and the row's temperature, filters, biases and forbidden words, so that the two agree
as often as what predicts and the model do.

INVARIANT: a draft that could not be drawn (logits that are no numbers) ends its row's drafts and nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from asyncpage.executor.batch import PersistentBatch
from asyncpage.executor.sampler import Sampler
from asyncpage.executor.speculation.proposer import Drafts
from asyncpage.messages import Int32, NewRow

Int64 = NDArray[np.int64]

Predict = Callable[[torch.Tensor], torch.Tensor]
"""States [S, E] to float32 logits [S, vocabulary], which may be changed in place."""

Advance = Callable[[Int32, Int32, torch.Tensor], torch.Tensor]
"""advance(rows [S], places [S], states [S, E]) -> the states behind the drafts at those places, given those before."""


class Drafting:
    """Settings of all rows, for drafts over a vocabulary of `vocab_size`.

    `computed`: how many tokens of each row what predicts has computed, which keeps it; at least `rows` long.
    """

    def __init__(self, vocab_size: int, rows: int, device: torch.device) -> None:
        self._sampler = Sampler(vocab_size, device)
        self.computed: Int32 = np.zeros(rows, dtype=np.int32)

    def clear(self) -> None:
        self._sampler.clear()

    def add(self, new: NewRow) -> None:
        """What the row brings computed counts as computed here, as far as the block's last owner got.

        What depends on the tokens before (penalties, a grammar) is left out: it would cost more than it finds.
        """
        if new.row >= len(self.computed):
            self.computed = np.pad(self.computed, (0, max(new.row + 1, 2 * len(self.computed)) - len(self.computed)))
        self.computed[new.row] = new.computed
        sampling = replace(
            new.sampling, logprobs=None, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0
        )
        tokens = np.frombuffer(new.tokens, dtype="<i4")
        self._sampler.add(replace(new, sampling=sampling, constraint=None), tokens)

    def remove(self, row: int) -> None:
        self._sampler.remove(row)

    def draw(
        self,
        batch: PersistentBatch,
        rows: Int32,
        asked: Int32,
        drafting: Int64,
        states_SE: torch.Tensor,
        predict: Predict,
        advance: Advance,
    ) -> Drafts:
        """Up to `asked` [R] drafts for those of `rows` [R] at `drafting` [S], whose last states these are."""
        found = np.zeros(len(rows), dtype=np.int32)
        drawn: list[tuple[Int64, Int32]] = []
        level = 0
        while True:
            own = rows[drafting]
            known = batch.known[own] + level
            numbers = (known - batch.prompts[own]).astype(np.int64)
            sampled = self._sampler.sample(own, numbers, predict(states_SE), partial(_known_of, batch, level))
            is_right = np.ones(len(own), dtype=np.bool_)
            is_right[[index for index, _ in sampled.failed]] = False
            batch.tokens[own, known] = sampled.tokens  # where the next forward pass reads it
            drawn.append((drafting[is_right], sampled.tokens[is_right]))
            found[drafting[is_right]] += 1
            level += 1
            goes_on = is_right & (asked[drafting] > level)
            if not goes_on.any():
                break
            if not goes_on.all():
                drafting = drafting[goes_on]
                states_SE = states_SE[torch.from_numpy(np.flatnonzero(goes_on)).to(states_SE.device)]
            own = rows[drafting]
            states_SE = advance(own, batch.known[own] + level - 1, states_SE)
        members = np.concatenate([members for members, _ in drawn])
        tokens = np.concatenate([tokens for _, tokens in drawn])
        return Drafts(found, tokens[np.argsort(members, kind="stable")])


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One of the forward passes in which rows catch up: of those at `members`, `counts` tokens from `begins` on.

    `ended`: which of the members have caught up with it.
    """

    members: Int64
    begins: Int32
    counts: Int32
    ended: Int64


def passes(begins: Int32, ends: Int32, most_tokens: int) -> Iterator[Pass]:
    """Passes of at most so many tokens that bring each row from its begin to its end [R]; all have some to do."""
    while True:
        left = ends - begins
        before = np.cumsum(left) - left
        counts = np.clip(most_tokens - before, 0, left).astype(np.int32)
        members = np.flatnonzero(counts)
        counts = counts[members]
        yield Pass(members, begins[members], counts, np.flatnonzero(counts == left[members]))
        begins = begins.copy()
        begins[members] += counts
        if (begins == ends).all():
            return


def _known_of(batch: PersistentBatch, drafts: int, row: int) -> Int32:
    """What the row knows with that many drafts behind it, a view."""
    return batch.tokens[row, : batch.known[row] + drafts]
