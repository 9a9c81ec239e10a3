"""What makes drafts, as the runner sees it.

The runner tells it of rows, asks for drafts before each forward pass, and shows it behind the sampling pass what the
model has computed; what became of its drafts it can see from what the rows know then. Whatever it proposes, the rows'
tokens stay the same: a bad proposal costs time alone.

INVARIANT: a proposal names as many rows as were asked about, and for none of them more drafts than asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from asyncpage.executor.attention import PagedAttention
from asyncpage.executor.batch import PersistentBatch
from asyncpage.messages import EMPTY, Int32, NewRow


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """`counts` [R]: how many each row got; `tokens` [sum counts]: theirs, one row after the other."""

    counts: Int32
    tokens: Int32 = field(default_factory=lambda: EMPTY)


def no_drafts(rows: int) -> Drafts:
    """None for any of so many rows."""
    return Drafts(np.zeros(rows, dtype=np.int32))


class Proposer(Protocol):
    """Only the runner calls it, one call at a time.

    `caches`: KV of its own, under the ids of the model's blocks, which the runner moves with them.
    """

    caches: Sequence[PagedAttention]

    def clear(self) -> None:
        """Forget every row."""
        ...

    def add(self, new: NewRow) -> None:
        """A request moves into a free row."""
        ...

    def remove(self, row: int) -> None:
        """The request has left the row."""
        ...

    def propose(self, batch: PersistentBatch, rows: Int32, counts: Int32, asked: Int32) -> Drafts:
        """Drafts for `rows` [R], at most `asked` [R] each, to follow what a row knows.

        Called before every forward pass: `counts` [R] are the tokens that each row computes in it, drafts aside. A row
        that is asked for some will have caught up with what it knows.
        """
        ...

    def observe(
        self, batch: PersistentBatch, rows: Int32, begins: Int32, starts: Int32, hidden_TE: torch.Tensor
    ) -> None:
        """The model's states at what `rows` [R] have just computed, behind its last norm; their tokens are sampled.

        Each row's lie from `starts` [R + 1] on, the first of them at the row's token `begins` [R]. Those at drafts that
        fell are among them: what counts ends where the row is computed to now.
        """
        ...
