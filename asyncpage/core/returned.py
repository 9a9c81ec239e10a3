"""A step in flight, and what it means for the sequences that still live in its rows once it has returned.

`running` makes it, the scheduler acts on it.

INVARIANT: `requests`, `counts`, `tokens` and `logprobs` hold accepted tokens only: nothing behind an end.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
from numpy.typing import NDArray

from asyncpage.core.sequence import Sequence
from asyncpage.messages import Int32, Logprobs, PromptLogprobs, RequestId
from asyncpage.records import record

Int64 = NDArray[np.int64]


@record(frozen=True, slots=True, eq=False)
class StepRecord:
    """A step in flight. `ends` [rows]: computed tokens of each row after it; `lives` [rows]: which life it serves.

    `membership`: how often rows had come and gone when it left. `is_decode`: each of its rows computes one token.
    """

    number: int
    epoch: int
    rows: Int32
    ends: Int32
    lives: Int64
    membership: int
    is_decode: bool


@record(frozen=True, slots=True)
class Over:
    """A sequence that is over: ended by a token, or None for its limit."""

    sequence: Sequence
    stop_token: int | None


@record(frozen=True, slots=True, eq=False)
class Returned:
    """`requests`, one a row; `counts` [R]; `tokens` [sum counts]; `logprobs` aligned with them.

    `filled`, `filled_tokens`: as in `Reserve`. `silent`: sequences that asked for their prompt's logprobs alone and
    have them.
    """

    record: StepRecord
    requests: tuple[RequestId, ...]
    counts: Int32
    tokens: Int32
    logprobs: Logprobs | None
    over: list[Over]
    filled: Int32
    filled_tokens: Int32
    failed: list[tuple[Sequence, str]]
    prompt_logprobs: list[tuple[RequestId, PromptLogprobs]]
    silent: list[Sequence]


def take_positions(logprobs: Logprobs | None, places: Int64) -> Logprobs | None:
    """The entries at these places."""
    if logprobs is None:
        return None
    return Logprobs(
        logprobs.token_logprobs[places],
        logprobs.ranks[places],
        logprobs.top_ids[places],
        logprobs.top_logprobs[places],
    )


def cut_at_ends(tokens: list[int], end_token_ids: Items[int]) -> tuple[list[int], int | None]:
    """The tokens up to the first that ends a sequence, and that token."""
    for at, token in enumerate(tokens):
        if token in end_token_ids:
            return tokens[: at + 1], token
    return tokens, None
