"""The sampling pass behind a forward pass: a token for each row that has caught up, and more while its drafts stand.

Verification is sampling. The forward pass has computed a row's drafts as if they were its tokens; what comes at each of
their places is then sampled as it would have been without them: from the same logits, with the same noise, after the
same tokens. A draft stands when it is what was sampled. The first that is not ends the row's step: what was sampled
in its place counts, and whatever was computed behind it is computed again. So a row's tokens are those that it would
have had without drafts, whatever its settings; drawing by a race (`race`) makes a guess with the same noise agree as
often as can be, where rejection sampling (Leviathan et al. 2023) would keep the distribution alone.

The runner asks once a step. INVARIANT: when it returns, each row that it was asked about has one token to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from asyncpage.executor import logprobs
from asyncpage.executor.batch import PersistentBatch
from asyncpage.executor.sampler import Sampled, Sampler, join
from asyncpage.messages import EMPTY, Int32, Logprobs

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """`rows` [R] got `counts` [R] of `tokens` [sum counts], with `logprobs` of each where any row asked.

    `drafted` [R]: drafts that each of them tried. `late`: rows that could not sample yet. `failed`: rows whose logits
    made no token without a draft behind them, which may have got some before, with the reason.
    """

    rows: Int32
    counts: Int32
    tokens: Int32
    drafted: Int32
    logprobs: Logprobs | None
    late: tuple[int, ...]
    failed: Mapping[int, str]


NOTHING = Outcome(EMPTY, EMPTY, EMPTY, EMPTY, None, (), {})


class SamplingPass:
    """`logits`: the model's, of hidden states [P, E]; `slice_positions`: how many of them at once."""

    def __init__(
        self,
        batch: PersistentBatch,
        sampler: Sampler,
        logits: Callable[[torch.Tensor], torch.Tensor],
        slice_positions: int,
    ) -> None:
        self._batch = batch
        self._sampler = sampler
        self._logits = logits
        self._slice = slice_positions

    def run(
        self, rows: Int32, drafted: Int32, places: Int32, hidden_TE: torch.Tensor, *, have_company: bool
    ) -> Outcome:
        """Sample for `rows` [R], whose `drafted` [R] drafts lie behind what they know.

        `places` [R]: where in `hidden_TE` the state at each row's last known token is; those at its drafts follow.
        `have_company`: other rows are in the step, too.
        """
        if len(rows) <= self._slice and not drafted.any():
            return self._run_plain(rows, drafted, places, hidden_TE, have_company=have_company)
        turn = _Turn(self._batch, self._sampler, rows, drafted, have_company=have_company)
        for part in self._parts(drafted):
            depth = int(drafted[part].max()) + 1
            levels = [part.start + np.flatnonzero(drafted[part] >= level) for level in range(depth)]
            wanted = np.concatenate([places[members] + level for level, members in enumerate(levels)])
            index = torch.from_numpy(wanted.astype(np.int64)).to(hidden_TE.device)
            logits_PV = self._logits(hidden_TE[index])
            alive, at = levels[0], 0
            for level, members in enumerate(levels):
                level_SV = logits_PV[at : at + len(members)]
                at += len(members)
                if len(alive) < len(members):
                    level_SV = level_SV[torch.from_numpy(np.searchsorted(members, alive)).to(level_SV.device)]
                alive = turn.take(level, alive, level_SV, is_last_part=part.stop == len(rows))
                if not len(alive):
                    break
        self._batch.leave_one(rows)
        return turn.outcome()

    def _run_plain(
        self, rows: Int32, drafted: Int32, places: Int32, hidden_TE: torch.Tensor, *, have_company: bool
    ) -> Outcome:
        """The same where none has drafts and all fit one slice, as in most steps: in few operations."""
        batch = self._batch
        if len(places) < len(hidden_TE):  # else they are all its rows, in order
            hidden_TE = hidden_TE[torch.from_numpy(places.astype(np.int64)).to(hidden_TE.device)]
        logits_RV = self._logits(hidden_TE)
        numbers = (batch.known[rows] - batch.prompts[rows]).astype(np.int64)
        sampled = self._sampler.sample(rows, numbers, logits_RV, batch.known_of, have_company=have_company)
        if sampled.late or sampled.failed:
            turn = _Turn(batch, self._sampler, rows, drafted, have_company=have_company)
            turn.keep(0, np.arange(len(rows)), sampled)
            batch.leave_one(rows)
            return turn.outcome()
        batch.append(rows, sampled.tokens)
        self._sampler.append(rows, sampled.tokens)
        batch.leave_one(rows)
        return Outcome(rows, np.ones_like(rows), sampled.tokens, drafted, sampled.logprobs, (), {})

    def _parts(self, drafted: Int32) -> Iterator[slice]:
        """Runs of rows whose positions are few enough to have their logits at once."""
        ends = np.cumsum(drafted + 1)
        start = before = 0
        while start < len(drafted):
            stop = max(start + 1, int(np.searchsorted(ends, before + self._slice, side="right")))
            yield slice(start, stop)
            start, before = stop, int(ends[stop - 1])


class _Turn:
    """One run: what was sampled so far."""

    def __init__(
        self, batch: PersistentBatch, sampler: Sampler, rows: Int32, drafted: Int32, *, have_company: bool
    ) -> None:
        self._batch = batch
        self._sampler = sampler
        self._rows = rows
        self._drafted = drafted
        self._have_company = have_company
        self._members: list[Int64] = []
        self._sampled: list[Sampled] = []  # what was kept, one entry a member
        self._late: list[int] = []
        self._has_waited = False
        self._failed: dict[int, str] = {}

    def take(self, level: int, members: Int64, logits_SV: torch.Tensor, *, is_last_part: bool) -> Int64:
        """Sample a token for each of `members` (indices of rows); returns those whose draft at this level stood.

        Rows of other parts are company: of those before, what can say something, behind, whatever may. A row that has
        said something in this step never holds up others, nor is it late.
        """
        batch, rows = self._batch, self._rows[members]
        sampled = self._sampler.sample(
            rows,
            (batch.known[rows] - batch.prompts[rows]).astype(np.int64),
            logits_SV,
            batch.known_of,
            have_company=self._have_company or level > 0 or bool(self._members) or not is_last_part,
            has_waited=self._has_waited,
        )
        return self.keep(level, members, sampled)

    def keep(self, level: int, members: Int64, sampled: Sampled) -> Int64:
        """Take in what was sampled for `members`; returns those whose draft at this level stood.

        A row that fails with drafts behind it waits, and tries none any more: attention gives what is hidden the weight
        0, and 0 times NaN is NaN, so a draft of which the model makes no numbers may have spoilt it. Its last token is
        computed again, and nothing before it: a step asks for drafts behind one token alone (`room_for_drafts`).
        """
        batch, rows = self._batch, self._rows[members]
        known = batch.known[rows]
        if sampled.late or sampled.failed:
            self._has_waited |= bool(sampled.late)
            spoilt = [index for index, _ in sampled.failed if self._drafted[members[index]] > level]
            waits = [*sampled.late, *spoilt]
            is_kept = np.ones(len(rows), dtype=np.bool_)
            is_kept[waits] = False
            if not level:
                self._late += rows[waits].tolist()
            batch.is_draftless[rows[spoilt]] = True
            for index, reason in sampled.failed:
                if is_kept[index]:
                    is_kept[index] = False
                    self._failed[int(rows[index])] = reason
                    batch.is_out[rows[index]] = True
            kept = np.flatnonzero(is_kept)
            members, rows, known = members[kept], rows[kept], known[kept]
            columns = None if sampled.logprobs is None else logprobs.take(sampled.logprobs, kept)
            sampled = Sampled(sampled.tokens[kept], logprobs=columns)
        if not len(members):
            return members
        tokens = sampled.tokens
        stands = self._drafted[members] > level
        if stands.any():
            stands &= batch.tokens[rows, known] == tokens
            for at in np.flatnonzero(stands).tolist():
                stands[at] = int(tokens[at]) not in batch.ends[int(rows[at])]
        batch.append(rows, tokens)
        self._sampler.append(rows, tokens)
        self._members.append(members)
        self._sampled.append(sampled)
        return members[stands]

    def outcome(self) -> Outcome:
        """Everything, one row after the other."""
        late, failed = tuple(self._late), self._failed
        if not self._members:
            return replace(NOTHING, late=late, failed=failed)
        whole, members = join(self._sampled), np.concatenate(self._members)
        tokens, columns = whole.tokens, whole.logprobs
        if len(self._members) > 1:
            order = np.argsort(members, kind="stable")  # levels came in order
            tokens = tokens[order]
            columns = None if columns is None else logprobs.take(columns, order)
        counts = np.bincount(members, minlength=len(self._rows)).astype(np.int32)
        has = counts > 0
        if has.all():
            return Outcome(self._rows, counts, tokens, self._drafted, columns, late, failed)
        return Outcome(self._rows[has], counts[has], tokens, self._drafted[has], columns, late, failed)
