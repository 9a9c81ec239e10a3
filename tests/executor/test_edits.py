"""Allowed ids, bad words, min_tokens and biases: against their meaning, one token at a time."""

import itertools

import numpy as np
import pytest
import torch

from asyncpage.core.sampling import SamplingParams
from asyncpage.executor.edits import Edits, asks
from asyncpage.messages import NewRow, RequestId

WIDTH = 12
CPU = torch.device("cpu")


def new_row(sampling: SamplingParams, **columns: object) -> NewRow:
    return NewRow(0, RequestId(1), b"", 1, 0, (), sampling, 0, **columns)  # type: ignore[arg-type]


def forbidden(new: NewRow, number: int = 0, known: tuple[int, ...] = ()) -> set[int]:
    logits = torch.zeros(WIDTH)
    Edits(new, CPU).apply(logits, number, np.array(known, dtype=np.int32))
    return set(np.flatnonzero(np.isneginf(logits.numpy())).tolist())


def test_all_but_allowed_ids_are_forbidden() -> None:
    assert forbidden(new_row(SamplingParams(allowed_token_ids=(3, 7)))) == set(range(WIDTH)) - {3, 7}


def test_every_end_is_held_back_until_min_tokens_are_out() -> None:
    new = new_row(SamplingParams(min_tokens=3), end_token_ids=(2, 11))
    assert [forbidden(new, number) for number in range(5)] == [{2, 11}, {2, 11}, {2, 11}, set(), set()]


def test_min_tokens_without_any_end_change_nothing() -> None:
    assert not asks(new_row(SamplingParams(min_tokens=3)))


@pytest.mark.parametrize("words", [((5,),), ((1, 2),), ((1, 1, 2), (1, 3), (4,)), ((0, 1, 0, 1),)])
def test_the_token_that_would_complete_a_bad_word_is_forbidden(words: tuple[tuple[int, ...], ...]) -> None:
    new = new_row(SamplingParams(), bad_word_ids=words)
    for length in range(5):
        for known in itertools.product(range(3), repeat=length):
            expected = {t for t in range(WIDTH) for word in words if (*known, t)[-len(word) :] == word}
            assert forbidden(new, 0, known) == expected


def test_a_bias_is_added_and_cannot_bring_back_what_is_forbidden() -> None:
    sampling = SamplingParams(allowed_token_ids=(1, 2), logit_bias=((1, -3.5), (2, 100.0), (3, 100.0)))
    logits = torch.ones(WIDTH)
    Edits(new_row(sampling), CPU).apply(logits, 0, np.empty(0, dtype=np.int32))
    assert logits[[0, 1, 2, 3]].tolist() == [-torch.inf, -2.5, 101.0, -torch.inf]
