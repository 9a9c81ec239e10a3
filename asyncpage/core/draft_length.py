"""How many drafts each row tries in a step: as many as bring the most tokens in the time that the step takes.

The planner asks before a step and tells what came of it. Two things are measured: of each row, how often a draft
stands, and of the house, what a step of so many tokens takes (`step_costs`) and what making drafts adds. A j-th draft
stands with the j-th power of the row's share, so the drafts of all rows are ranked by what they are worth, and the
number of the best that makes tokens by time greatest is tried. The greater the batch, the dearer a token more, until
none is worth it. A row that tries none looks now and then, more and more rarely, as if its text had changed for the
best: where that would not pay either, it does not, and where it would it tries two. What a step takes with one draft of
each row is looked for, too, as drafts of any depth build on it.

INVARIANT: the choice depends on what the executor answered and on nothing else, so a replay makes it again.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from asyncpage.core.step_costs import Float64, StepCosts
from asyncpage.messages import EMPTY, Int32

_OWN_MEMORY = 0.97  # what a row's last step counts of the one before: about thirty steps decide
_HOUSE_MEMORY = 0.99
_PRIOR_DRAFTS = 4.0  # drafts of the house that stand for a row nothing is known of
_FIRST_SHARE, _FIRST_DRAFTS = 0.6, 4.0  # of so many drafts so many stood, before any was tried
_LIKELIEST = 0.98  # so that a later draft is always worth less than an earlier one
_LOOK_DRAFTS = 2  # that such a look takes: it is to tell, and more than two cost a head dear
_FIRST_PAUSE, _LONGEST_PAUSE = 8, 512  # steps of a row between two tries; 200 tokens have four of them
_REMEMBERED = 9  # steps that tried drafts
_MOST_ALIKE = 8  # steps for which a choice may hold


class DraftLengths:
    """For `rows` rows, each of at most `most` drafts a step."""

    def __init__(self, rows: int, most: int) -> None:
        self._most = most
        self._tried: Float64 = np.zeros(rows)
        self._stood: Float64 = np.zeros(rows)
        self._house_tried = self._house_stood = 0.0
        self._costs = StepCosts()
        self._draft_times: deque[float] = deque(maxlen=_REMEMBERED)
        self._draft_us = 0.0  # of one draft of each row: their median, as the first behind a pause has to catch up
        self._pauses: Int32 = np.full(rows, _FIRST_PAUSE, dtype=np.int32)
        self._since: Int32 = np.zeros(rows, dtype=np.int32)  # steps since the row tried
        self._looks: NDArray[np.bool_] = np.zeros(rows, dtype=np.bool_)  # rows that tried for a look, not for a gain
        self._alike = 1

    def open(self, row: int) -> None:
        """Another request lives in the row."""
        self._tried[row] = self._stood[row] = 0.0
        self._pauses[row], self._since[row] = _FIRST_PAUSE, 0

    @property
    def equal_steps(self) -> int:
        """For how many steps the last choice may hold, where it was to try none."""
        return self._alike

    def choose(self, rooms: Int32, tokens: int, budget_tokens: int) -> Int32:
        """Drafts of each row [rows]; `EMPTY` for none at all.

        `rooms` [rows]: how many each could try. `tokens`: what the step computes without any, of `budget_tokens`.
        """
        rows = np.flatnonzero(rooms > 0)
        left = min(budget_tokens - tokens, self._most * len(rows))
        self._alike = 1
        if left < 1 or self._costs.is_due(tokens):  # what the drafts would be compared with is to be seen
            return EMPTY
        widths = np.minimum(rooms[rows], self._most)
        if left >= len(rows) and self._costs.ask(tokens + len(rows)):
            self._looks[rows] = True
            return np.minimum(rooms, 1)
        shares, waits = self._shares(rows), self._pauses[rows] - self._since[rows]
        looks = (waits <= 0).any() & (2 * waits <= self._pauses[rows])  # also those whose turn comes soon: at one time
        drafts = self._best(np.where(looks, _LIKELIEST, shares), widths, tokens, left)
        if looks.any():
            drafts = np.where(looks, np.minimum(drafts, _LOOK_DRAFTS), drafts)
        self._looks[rows] = looks
        if not drafts.any():
            self._alike = min(_MOST_ALIKE, max(1, int(waits.min())))
            return EMPTY
        column = np.zeros_like(rooms)
        column[rows] = drafts
        return column

    def learn(self, rows: Int32, counts: Int32, drafted: Int32, *, tokens: int, elapsed_us: int, draft_us: int) -> None:
        """A step is back. `rows`, `counts`, `drafted` [R] as `StepDone` has them; `tokens`: what it computed."""
        self._since += 1
        if tokens:
            self._costs.learn(tokens, elapsed_us - draft_us)
        if not len(drafted) or not drafted.any():
            return
        self._draft_times.append(draft_us / int(drafted.max()))
        self._draft_us = sorted(self._draft_times)[len(self._draft_times) // 2]
        has = drafted > 0
        rows, stood = rows[has], (counts[has] - 1).astype(np.float64)
        tried = np.minimum(stood + 1, drafted[has])  # nothing is known of drafts behind one that fell
        self._tried[rows] = _OWN_MEMORY * self._tried[rows] + tried
        self._stood[rows] = _OWN_MEMORY * self._stood[rows] + stood
        self._since[rows] = 0  # a row for which none were found is asked for again: that costs nothing
        is_vain = self._looks[rows] & (stood == 0)
        self._pauses[rows] = np.where(is_vain, np.minimum(2 * self._pauses[rows], _LONGEST_PAUSE), _FIRST_PAUSE)
        self._house_tried = _HOUSE_MEMORY * self._house_tried + float(tried.sum())
        self._house_stood = _HOUSE_MEMORY * self._house_stood + float(stood.sum())

    def _shares(self, rows: NDArray[np.int64]) -> Float64:
        """How likely a draft of each of these rows stands [R]."""
        house = (self._house_stood + _FIRST_SHARE * _FIRST_DRAFTS) / (self._house_tried + _FIRST_DRAFTS)
        shares = (self._stood[rows] + _PRIOR_DRAFTS * house) / (self._tried[rows] + _PRIOR_DRAFTS)
        return np.minimum(shares, _LIKELIEST)

    def _best(self, shares: Float64, widths: Int32, tokens: int, left: int) -> Int32:
        """Drafts of each row [R] that bring the most tokens by time; zeros where none do."""
        # Powers by multiplication: these are the same on every machine.
        worth_RK = np.multiply.accumulate(np.repeat(shares[:, None], self._most, axis=1), axis=1)
        places = np.arange(self._most)
        worth_RK = np.where(places < widths[:, None], worth_RK, 0.0)
        best, best_rate = np.zeros_like(widths), 0.0
        # Where drafts cost time of their own, they do by their depth: a shorter greatest depth may be better.
        depths = range(self._most, 0, -1) if self._draft_us else (self._most,)
        for depth in depths:
            ranked = np.argsort(-worth_RK[:, :depth], axis=None, kind="stable")[:left]
            worths = worth_RK[:, :depth].ravel()[ranked]
            gains = np.concatenate(([0.0], np.cumsum(worths)))
            times = self._costs.step_us(tokens + np.arange(len(gains), dtype=np.float64))
            times[1:] += depth * self._draft_us
            rates = (len(shares) + gains) / np.maximum(times, 1.0)
            number = int(rates.argmax())
            if rates[number] > best_rate:
                best_rate = float(rates[number])
                chosen = ranked[:number][worths[:number] > 0]
                best = np.bincount(chosen // depth, minlength=len(shares)).astype(np.int32)
        return best
