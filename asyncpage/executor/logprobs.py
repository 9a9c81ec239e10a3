"""Log-probabilities of chosen and of likely tokens, from logits that no sampling setting has touched.

The runner asks for prompts, the sampler for what it drew. The chosen token's number and its entry among the likely
ones are read from the same array, so they are the identical float.

INVARIANT: a position costs memory only while its slice is worked on; slices are bounded, prompts are not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from asyncpage.executor import extremes
from asyncpage.messages import Int32, Logprobs

NO_TOKEN = -1
"""The id in the columns of positions whose row did not ask."""


def measure(logprobs_PV: torch.Tensor, tokens_P: Int32, k: int) -> Logprobs:
    """The chosen token's log-probability and rank, and the `k` most likely, at each of P positions.

    `logprobs_PV`: float32, the log-softmax of raw logits. Rank 1 is the most likely; equals rank by their id, as they
    are listed. `k` is clipped to the vocabulary.
    """
    width = logprobs_PV.shape[1]
    chosen = tokens_P.astype(np.int64)
    top_ids = extremes.top(logprobs_PV, min(k, width))
    places = np.arange(len(chosen))[:, None] * width
    return Logprobs(
        token_logprobs=extremes.at(logprobs_PV, places[:, 0] + chosen),
        ranks=extremes.ranks(logprobs_PV, chosen),
        top_ids=top_ids.astype(np.int32),
        top_logprobs=extremes.at(logprobs_PV, places + top_ids),
    )


def blank(positions: int, k: int) -> Logprobs:
    """Columns that hold no token: id -1, rank 0, minus infinity."""
    return Logprobs(
        token_logprobs=np.full(positions, -np.inf, dtype=np.float32),
        ranks=np.zeros(positions, dtype=np.int32),
        top_ids=np.full((positions, k), NO_TOKEN, dtype=np.int32),
        top_logprobs=np.full((positions, k), -np.inf, dtype=np.float32),
    )


def spread(part: Logprobs, places: NDArray[np.int64], positions: int) -> Logprobs:
    """`part` put at `places` of `positions`; the others are blank."""
    if len(places) == positions:
        return part
    k = part.top_ids.shape[1]
    whole = blank(positions, k)
    _put(whole, places, part)
    return whole


def join(parts: Sequence[Logprobs]) -> Logprobs:
    """Slices of one run of positions as one; it lists as many likely tokens as its widest slice."""
    if len(parts) == 1:
        return parts[0]
    lengths = [len(part.ranks) for part in parts]
    whole = blank(sum(lengths), max(part.top_ids.shape[1] for part in parts))
    at = 0
    for part, length in zip(parts, lengths, strict=True):
        _put(whole, slice(at, at + length), part)
        at += length
    return whole


def take(whole: Logprobs, places: NDArray[np.int64]) -> Logprobs:
    """The columns of some positions."""
    return Logprobs(
        whole.token_logprobs[places], whole.ranks[places], whole.top_ids[places], whole.top_logprobs[places]
    )


def _put(whole: Logprobs, places: slice | NDArray[np.int64], part: Logprobs) -> None:
    k = part.top_ids.shape[1]
    whole.token_logprobs[places] = part.token_logprobs
    whole.ranks[places] = part.ranks
    whole.top_ids[places, :k] = part.top_ids
    whole.top_logprobs[places, :k] = part.top_logprobs
