"""Penalties on tokens a request has seen: repetition over prompt and output, frequency and presence over output.

The sampler keeps one of these for a row that asks and tells it every token the row gains. Repetition is the rule of
CTRL (Keskar et al. 2019): a positive logit is divided, a negative one multiplied; frequency and presence are the
OpenAI API's: a logit loses `frequency` for each time its token was put out and `presence` once.

INVARIANT: the counts are those of the row's tokens, however they came: drawn here, or brought along after a preemption.
"""

from __future__ import annotations

import numpy as np
import torch

from asyncpage.core.sampling import SamplingParams
from asyncpage.messages import Int32

_SMALLEST_REPETITION = 1e-30  # below it the quotient leaves float32; the order of tokens no longer changes
_LARGEST = float(np.finfo(np.float32).max)


def asks(sampling: SamplingParams) -> bool:
    """Whether any penalty changes anything."""
    return bool(sampling.repetition_penalty != 1.0 or sampling.frequency_penalty or sampling.presence_penalty)


class Penalties:
    """One row's distinct tokens and how often each was put out; the logits of no other token change."""

    def __init__(self, sampling: SamplingParams, tokens: Int32, prompt_tokens: int) -> None:
        self._repetition = max(sampling.repetition_penalty, _SMALLEST_REPETITION)
        self._frequency = sampling.frequency_penalty
        self._presence = sampling.presence_penalty
        prompt = tokens[:prompt_tokens] if sampling.repetition_penalty != 1.0 else tokens[:0]
        output = tokens[prompt_tokens:]
        ids, inverse = np.unique(np.concatenate((prompt, output)), return_inverse=True)
        self._size = len(ids)
        self._ids = np.zeros(max(64, 2 * self._size), dtype=np.int64)
        self._ids[: self._size] = ids
        self._counts = np.zeros(len(self._ids), dtype=np.float32)
        self._counts[: self._size] = np.bincount(inverse[len(prompt) :], minlength=self._size)
        self._place = {int(token): place for place, token in enumerate(ids)}

    def append(self, token: int) -> None:
        """The row put out a token."""
        place = self._place.get(token)
        if place is None:
            place = self._size
            if place == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._ids[place] = token
            self._place[token] = place
            self._size += 1
        self._counts[place] += 1

    def apply(self, logits_V: torch.Tensor) -> None:
        """Change a row of float32 logits in place: repetition, then frequency, then presence."""
        if not self._size:
            return
        ids = torch.from_numpy(self._ids[: self._size]).to(logits_V.device)
        values = logits_V[ids]
        if self._repetition != 1.0:
            values = torch.where(values > 0, values / self._repetition, values * self._repetition)
            values.clamp_(max=_LARGEST)
        counts = torch.from_numpy(self._counts[: self._size]).to(logits_V.device)
        if self._frequency:
            values = values - self._frequency * counts
        if self._presence:
            values = values - self._presence * (counts > 0)
        logits_V[ids] = values
