"""Texts that a model has written, with its states, made into batches that a draft head learns from.

`head_training` takes them. Texts of about one length share a batch, so that little of it is padding.

INVARIANT: at a place the head is shown the token there and the state before it, and is asked for the state there; what
the texts begin with alike, before `Lesson.begin`, is neither shown nor asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_BEFORE = 4  # places before the first that is asked, for the head to look back at


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """`tokens` int64 [N], `states` float16 [N - 1, E] at all but the last.

    What counts begins at the token `begin`, and counts for `1` from the token `answer` on.
    """

    tokens: Tensor
    states: Tensor
    begin: int
    answer: int

    @property
    def first(self) -> int:
        """The first place that is shown: it has a state before it."""
        return max(1, self.begin - _BEFORE)

    @property
    def places(self) -> int:
        return len(self.tokens) - 1 - self.first


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Of B texts and at most T places: tokens int64 [B, T], the states before and at them [B, T, E] and the tokens that
    follow. `weights` [B, T]: what each place counts, 0 for padding."""

    tokens: Tensor
    before: Tensor
    states: Tensor
    following: Tensor
    weights: Tensor


def batches(
    lessons: Sequence[Lesson], places: int, weight_before: float, draws: torch.Generator | None = None
) -> Iterator[Batch]:
    """Every lesson once, about so many places at a time; in an order by `draws`, or by length."""
    order = sorted(range(len(lessons)), key=lambda index: lessons[index].places)
    groups: list[list[int]] = [[]]
    for index in order:
        if groups[-1] and (len(groups[-1]) + 1) * lessons[index].places > places:
            groups.append([])
        groups[-1].append(index)
    if draws is not None:
        groups = [groups[at] for at in torch.randperm(len(groups), generator=draws).tolist()]
    for group in groups:
        if group:
            yield _batch([lessons[index] for index in group], weight_before)


def _batch(lessons: Sequence[Lesson], weight_before: float) -> Batch:
    count, places = len(lessons), max(lesson.places for lesson in lessons)
    hidden = lessons[0].states.shape[1]
    batch = Batch(
        torch.zeros(count, places, dtype=torch.int64),
        torch.zeros(count, places, hidden),
        torch.zeros(count, places, hidden),
        torch.zeros(count, places, dtype=torch.int64),
        torch.zeros(count, places),
    )
    for row, lesson in enumerate(lessons):
        first, own = lesson.first, lesson.places
        batch.tokens[row, :own] = lesson.tokens[first : first + own]
        batch.following[row, :own] = lesson.tokens[first + 1 : first + 1 + own]
        batch.before[row, :own] = lesson.states[first - 1 : first - 1 + own]
        batch.states[row, :own] = lesson.states[first : first + own]
        # The place before a token predicts it.
        batch.weights[row, max(0, lesson.begin - 1 - first) : own] = weight_before
        batch.weights[row, max(0, lesson.answer - 1 - first) : own] = 1.0
    return batch
