"""Columns of log-probabilities as entries, one a token: what sinks take and answers show.

Front ends make them, for the requests that want any.

INVARIANT: one entry a token, in order; a chosen token's number is the one in the columns, unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from asyncpage.messages import LogprobEntry, Logprobs, PromptLogprobs

UNKNOWN = -1  # stands for the first prompt token where its id was not told


class TokenTable(Protocol):
    """Says what tokens look like: a tokenizer."""

    def token_text(self, id: int) -> str:
        """As the API shows it; "" for an id that the vocabulary does not have."""
        ...

    def token_bytes(self, id: int) -> bytes:
        """What it stands for, b"" for an id that the vocabulary does not have."""
        ...

    def whole_text(self, data: bytes) -> str:
        """What the tokens of a whole text stand for, as text."""
        ...


def entries(ids: Sequence[int], columns: Logprobs) -> Iterator[LogprobEntry]:
    """Entries for `ids`, each with all the alternatives that `columns` has.

    0.3 us a token. Lists inside cost the garbage collector three times that; a `TokenLogprob` each, with its texts,
    cost 9 us, for answers that mostly nobody renders.
    """
    return zip(
        ids,
        columns.token_logprobs.tolist(),
        columns.ranks.tolist(),
        *columns.top_ids.T.tolist(),
        *columns.top_logprobs.T.tolist(),
        strict=True,
    )


def prompt_entries(part: PromptLogprobs) -> list[LogprobEntry]:
    """Entries for the prompt tokens of `part`. The prompt's first one, if it is there, is alone and has no numbers."""
    ids = part.tokens.tolist()
    return [(id, None, 0) for id in ids] if part.start == 0 else list(entries(ids, part.logprobs))


def narrowed(entry: LogprobEntry, most: int) -> LogprobEntry:
    """The same with at most `most` alternatives."""
    wide = (len(entry) - 3) // 2
    return entry if wide <= most else entry[: 3 + most] + entry[3 + wide : 3 + wide + most]


def alternatives(entry: LogprobEntry, most: int | None = None) -> Iterator[tuple[int, int, float]]:
    """Place (from 1), id and log-probability of the first `most` alternatives, without those that cannot be drawn."""
    wide = (len(entry) - 3) // 2
    shown = wide if most is None else min(most, wide)
    for place, (id, logprob) in enumerate(zip(entry[3 : 3 + shown], entry[3 + wide :], strict=False), 1):
        if id >= 0 and math.isfinite(logprob):
            yield place, id, logprob
