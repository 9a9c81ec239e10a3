"""What a step that tried drafts brought: which tokens count, and how far each row is behind what was planned.

A row that may try k drafts is planned as if all of them stood: k + 1 tokens more than before. When the step is back
with fewer, the row is that many behind, in the columns and in the records of the steps that left since. A row that
could not sample at all, as what it may say was not known yet, is the same case with none.

`running` asks for both.

INVARIANT: nothing behind an end token or beyond the limit counts, whatever an executor sends.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items

import numpy as np
from numpy.typing import NDArray

from asyncpage.core.returned import StepRecord, take_positions
from asyncpage.errors import ProtocolError
from asyncpage.messages import Int32, Logprobs, StepDone

Int64 = NDArray[np.int64]


def check_counts(record: StepRecord, done: StepDone) -> None:
    """Errors: `ProtocolError` when a row brings no token, or more than its drafts allow."""
    rows, counts, drafted = done.rows, done.counts, done.drafted
    is_right = len(done.tokens) == len(rows)
    if len(drafted):
        is_right = len(drafted) == len(rows) and record.drafts is not None
        if is_right and record.drafts is not None:
            fits = (counts >= 1) & (counts <= drafted + 1) & (drafted <= record.drafts.take(rows))
            is_right = bool(fits.all())
    if not is_right:
        raise ProtocolError(f"the executor answered step {record.number} with more or fewer tokens than it could bring")


def of_living(done: StepDone, lives: NDArray[np.bool_]) -> tuple[Int32, Int32, Int32, Logprobs | None, Int32]:
    """Rows, counts, tokens, log-probabilities and drafts tried of the rows where `lives` [R] is set."""
    if lives.all():
        return done.rows, done.counts, done.tokens, done.logprobs, done.drafted
    places = np.flatnonzero(np.repeat(lives, done.counts))
    drafted = done.drafted[lives] if len(done.drafted) else done.drafted
    return done.rows[lives], done.counts[lives], done.tokens[places], take_positions(done.logprobs, places), drafted


def cut(
    rows: Int32, counts: Int32, tokens: Int32, rooms: Int32, end_token_ids: Callable[[int], Items[int]]
) -> tuple[Int32, Int64, list[tuple[int, int | None]]]:
    """Counts [R] cut behind an end token and at `rooms` [R], the tokens that a row may still get.

    Returns them, the places of what is kept, and the rows that are over with the token that ended each, if one did.
    """
    kept = np.minimum(counts, rooms)
    over: list[tuple[int, int | None]] = []
    ids, at = tokens.tolist(), 0
    for place, (row, count, room) in enumerate(zip(rows.tolist(), counts.tolist(), rooms.tolist(), strict=True)):
        ends = end_token_ids(row)
        most = int(kept[place])
        found = next((index for index, token in enumerate(ids[at : at + most]) if token in ends), None)
        if found is not None:
            kept[place] = found + 1
            over.append((row, ids[at + found]))
        elif most == room:
            over.append((row, None))
        at += count
    behind = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)  # place of a token in its row
    return kept, np.flatnonzero(behind < np.repeat(kept, counts)), over


def behind(
    record: StepRecord, rows: Int32, counts: Int32, late: Items[int], is_served: Callable[[StepRecord, int], bool]
) -> Int32 | None:
    """Tokens that each row is behind what the step was to bring [rows]; None when no row is.

    `rows`, `counts`: what those got that still live the life that the step served.
    """
    if record.drafts is None and not late:
        return None
    column: Int32 = np.zeros_like(record.base)
    if record.drafts is not None:
        column[rows] = record.drafts.take(rows) + 1 - counts
    for row in late:
        if is_served(record, row):
            column[row] = 1 if record.drafts is None else record.drafts[row] + 1
    return column if column.any() else None
