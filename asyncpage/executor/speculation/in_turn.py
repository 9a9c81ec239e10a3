"""Proposers one behind the other: whoever the first finds nothing for is asked of the next.

The loader puts n-grams before a head: where a row's own text goes on as it did before nothing is surer or cheaper, and
elsewhere they are silent.

INVARIANT: a row's drafts in a step are all of one proposer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from asyncpage.executor.attention import PagedAttention
from asyncpage.executor.batch import PersistentBatch
from asyncpage.executor.speculation.proposer import Drafts, Proposer, no_drafts
from asyncpage.messages import Int32, NewRow


class InTurn:
    """`proposers`: in this order."""

    def __init__(self, *proposers: Proposer) -> None:
        self._proposers = proposers
        self.caches: Sequence[PagedAttention] = tuple(cache for one in proposers for cache in one.caches)

    def clear(self) -> None:
        for one in self._proposers:
            one.clear()

    def add(self, new: NewRow) -> None:
        for one in self._proposers:
            one.add(new)

    def remove(self, row: int) -> None:
        for one in self._proposers:
            one.remove(row)

    def propose(self, batch: PersistentBatch, rows: Int32, counts: Int32, asked: Int32) -> Drafts:
        """Every proposer is told of every row, whether or not it is asked for drafts of it."""
        whole = no_drafts(len(rows))
        for one in self._proposers:
            drafts = one.propose(batch, rows, counts, np.where(whole.counts > 0, 0, asked))
            whole = _join(whole, drafts)
        return whole

    def observe(
        self, batch: PersistentBatch, rows: Int32, begins: Int32, starts: Int32, hidden_TE: torch.Tensor
    ) -> None:
        for one in self._proposers:
            one.observe(batch, rows, begins, starts, hidden_TE)


def _join(drafts: Drafts, others: Drafts) -> Drafts:
    """Of two, each of other rows."""
    if not len(others.tokens) or not len(drafts.tokens):
        return drafts if len(drafts.tokens) else others
    rows = np.arange(len(drafts.counts))
    owners = np.concatenate([np.repeat(rows, one.counts) for one in (drafts, others)])
    tokens = np.concatenate([drafts.tokens, others.tokens])
    return Drafts(drafts.counts + others.counts, tokens[np.argsort(owners, kind="stable")])
