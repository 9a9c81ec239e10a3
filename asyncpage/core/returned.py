"""A step in flight, and what it means for the sequences that still live in its rows once it has returned.

`running` makes it, the scheduler acts on it.

INVARIANT: `requests`, `counts`, `tokens` and `logprobs` hold accepted tokens only: nothing behind an end.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from asyncpage.core.sequence import Sequence
from asyncpage.messages import EMPTY, Int32, Logprobs, PromptLogprobs, RequestId, StepDone
from asyncpage.records import record

Int64 = NDArray[np.int64]


@record(frozen=True, slots=True, eq=False)
class StepRecord:
    """A step in flight. `column` [rows]: tokens each row computes in it; `lives` [rows]: which life it serves.

    `base` [rows]: computed tokens of each row `steps` such steps before its end. `membership`: how often rows had come
    and gone when it left. `drafts` [rows]: how many of `column` are drafts that it may try; None when no row may any.
    """

    number: int
    epoch: int
    rows: Int32
    base: Int32
    column: Int32
    steps: int
    lives: Int64
    membership: int
    drafts: Int32 | None = None

    @property
    def ends(self) -> Int32:
        """Computed tokens of each row after it [rows]; right for the lives it serves."""
        return self.base + self.steps * self.column

    @property
    def most_behind(self) -> int:
        """Tokens that a row may turn out to be behind: its drafts, and the one that it samples."""
        return 1 if self.drafts is None else 1 + int(self.drafts.max())

    def short_of(self, column: Int32) -> StepRecord:
        """The step with that many fewer computed tokens in each row; right where they live the life that it serves."""
        return replace(self, base=self.base - column)


@dataclass(slots=True, eq=False)
class Lane:
    """A run of equal steps: the same rows, each of which computes one token and samples the next.

    `rows` [R], `column` [rows] (1 where a row runs), `requests` [R]. Its steps are only counted, `launched`, and their
    tokens kept, `back`, until somebody asks for a column; `newest` is the last that is back. `named_rows`: the rows as
    the executor's answers name them, once they were found to be `rows`.
    """

    rows: Int32
    column: Int32
    requests: tuple[RequestId, ...]
    named_rows: Int32
    launched: int = 0
    back: list[Int32] = field(default_factory=list)
    newest: StepRecord | None = None

    def fits(self, record: StepRecord, done: StepDone) -> bool:
        """Whether a step that is back is one of these and brings a token for each row, and nothing else."""
        if (
            record.column is not self.column
            or len(done.tokens) != len(self.rows)
            or done.failed
            or done.prompt_logprobs
            or done.pooled
        ):
            return False
        if done.rows is not self.named_rows:
            if not np.array_equal(done.rows, self.rows):
                return False
            self.named_rows = done.rows
        return True


@record(frozen=True, slots=True)
class Over:
    """A sequence that is over: ended by a token, or None for its limit."""

    sequence: Sequence
    stop_token: int | None


@record(frozen=True, slots=True, eq=False)
class Returned:
    """`rows` [R]; `requests`, one a row; `counts` [R]; `tokens` [sum counts]; `logprobs` aligned with them.

    `drafted` [R]: drafts that each row tried, empty when none did: all but one of its `counts` are drafts that stood.
    `silent`: sequences that ran for what their prompt tells and have been through it. `embeddings`: what pooled rows
    brought.
    """

    record: StepRecord
    rows: Int32
    requests: tuple[RequestId, ...]
    counts: Int32
    tokens: Int32
    logprobs: Logprobs | None
    over: Items[Over] = ()
    failed: Items[tuple[Sequence, str]] = ()
    prompt_logprobs: Items[tuple[RequestId, PromptLogprobs]] = ()
    silent: Items[Sequence] = ()
    drafted: Int32 = field(default_factory=lambda: EMPTY)
    embeddings: Mapping[RequestId, bytes] = field(default_factory=dict)


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
