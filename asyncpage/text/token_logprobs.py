"""Columns of log-probabilities as the entries that the API shows.

The detokenizer actor asks for them, for the requests that want any.

INVARIANT: one entry a token, in order; a chosen token's number is the one in the columns, unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncpage.messages import Logprobs, PromptLogprobs, TokenLogprob
from asyncpage.text.tokenizer import Tokenizer

UNKNOWN = -1  # stands for the first prompt token where its id was not told


def token_logprobs(
    tokenizer: Tokenizer, ids: Sequence[int], columns: Logprobs, first: int, most: int
) -> tuple[TokenLogprob, ...]:
    """Entries for `ids`, which lie at `first` and behind in `columns`, with at most `most` alternatives each.

    Alternatives that are not possible (minus infinity, or none at all) are left out.
    """
    last = first + len(ids)
    rows = zip(
        ids,
        columns.token_logprobs[first:last].tolist(),
        columns.ranks[first:last].tolist(),
        columns.top_ids[first:last, :most].tolist(),
        columns.top_logprobs[first:last, :most].tolist(),
        strict=True,
    )
    text, raw = tokenizer.token_text, tokenizer.token_bytes
    return tuple(
        TokenLogprob(
            id,
            text(id),
            raw(id),
            logprob,
            rank,
            tuple(
                (top, text(top), raw(top), value)
                for top, value in zip(top_ids, top_values, strict=True)
                if top >= 0 and math.isfinite(value)
            ),
        )
        for id, logprob, rank, top_ids, top_values in rows
    )


def prompt_entries(tokenizer: Tokenizer, part: PromptLogprobs, skip: int, most: int) -> tuple[TokenLogprob, ...]:
    """Entries for the prompt tokens of `part`, but for its first `skip`."""
    return token_logprobs(tokenizer, part.tokens[skip:].tolist(), part.logprobs, skip, most)


def first_prompt_entry(tokenizer: Tokenizer, id: int) -> TokenLogprob:
    """The entry of a prompt's first token, before which there is nothing to tell its probability from."""
    if id == UNKNOWN:
        return TokenLogprob(UNKNOWN, "", b"", None, 0, ())
    return TokenLogprob(id, tokenizer.token_text(id), tokenizer.token_bytes(id), None, 0, ())
