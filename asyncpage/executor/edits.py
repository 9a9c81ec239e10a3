"""What one request forbids or favours: allowed ids, bad words, tokens held back until `min_tokens`, biases.

The sampler keeps one of these for a row that asks and applies it in this order, which is the order of its lines.

INVARIANT: a forbidden token has the logit minus infinity and no later stage gives it another.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from asyncpage.messages import Int32, NewRow

_FORBIDDEN = float("-inf")


def asks(new: NewRow) -> bool:
    """Whether this request's settings change logits at all, penalties aside."""
    sampling = new.sampling
    return bool(
        sampling.allowed_token_ids is not None
        or new.bad_word_ids
        or (sampling.min_tokens and new.end_token_ids)
        or sampling.logit_bias
    )


class Edits:
    """One row's changes to its logits, as index tensors made once."""

    def __init__(self, new: NewRow, device: torch.device) -> None:
        sampling = new.sampling
        self._device = device
        allowed = sampling.allowed_token_ids
        self._allowed = None if allowed is None else self._indices(allowed)
        self._min_tokens = sampling.min_tokens if new.end_token_ids else 0
        self._ends = self._indices(new.end_token_ids)
        self._bad_words = tuple(np.asarray(word, dtype=np.int32) for word in new.bad_word_ids if word)
        self._biased = self._indices(token for token, _ in sampling.logit_bias)
        self._biases = torch.tensor([bias for _, bias in sampling.logit_bias], dtype=torch.float32, device=device)

    def apply(self, logits_V: torch.Tensor, number: int, known: Int32, *, must_end: bool = False) -> None:
        """Change a row of float32 logits in place, before output token `number` (from 0) of a row that knows `known`.

        A bad word may have begun in the prompt: it is its last token that is forbidden, wherever the others came from.
        `must_end`: nothing but an end token may come, whatever `min_tokens` says.
        """
        if self._allowed is not None:
            kept = logits_V[self._allowed]
            logits_V.fill_(_FORBIDDEN)
            logits_V[self._allowed] = kept
        if self._bad_words:
            banned = [int(word[-1]) for word in self._bad_words if _would_complete(word, known)]
            if banned:
                logits_V[self._indices(banned)] = _FORBIDDEN
        if number < self._min_tokens and not must_end:
            logits_V[self._ends] = _FORBIDDEN
        if len(self._biased):
            logits_V.index_add_(0, self._biased, self._biases)

    def _indices(self, ids: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(ids), dtype=torch.int64, device=self._device)


def _would_complete(word: Int32, known: Int32) -> bool:
    begun = len(word) - 1
    return begun == 0 or (begun <= len(known) and np.array_equal(known[len(known) - begun :], word[:-1]))
