"""What the executor may ask of an encoder: states of whole prompts, in which every token sees all others.

INVARIANT: a token's hidden state depends on its own prompt only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Encoder(Protocol):
    """An encoder, loaded. `max_model_len`: tokens of the longest prompt."""

    vocab_size: int
    hidden_size: int
    max_model_len: int

    def encode(self, tokens_T: Tensor, lengths: Sequence[int]) -> Tensor:
        """Hidden states [T, E] after the last layer, for int64 tokens of prompts in a row, each of its length.

        Prompts of equal length that lie beside one another are attended to in one go.
        """
        ...
