"""Pseudonyms keep equality and nothing else."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncpage.pipes.journal.pseudonym import KEY_BYTES, Pseudonyms, TrueIds

VOCAB = 50_000
KEY = bytes(range(KEY_BYTES))
NAMES = Pseudonyms(KEY, VOCAB)


def test_a_vocabulary_is_shuffled() -> None:
    ids = np.arange(VOCAB, dtype=np.int32)
    found = NAMES.of_column(ids)
    assert found.dtype == np.int32
    assert sorted(found.tolist()) == ids.tolist()
    # A random permutation of any size leaves one id in its place on average, and more than 8 once in 10**6 times.
    assert (found == ids).sum() <= 8
    # The mean distance of a random permutation is a third of its size (here within six of its deviations).
    assert abs(float(np.abs(found - ids).mean()) / VOCAB - 1 / 3) < 0.006


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.integers(1, 2**12))
def test_equal_ids_have_equal_pseudonyms_and_different_ids_different_ones(ids: list[int], vocab: int) -> None:
    names = Pseudonyms(KEY, vocab)
    ids += [number % vocab for number in ids]
    renamed = names.of_ids(ids)
    assert [renamed[ids.index(number)] for number in ids] == list(renamed)
    assert len(set(renamed)) == len(set(ids))
    assert [number < vocab for number in renamed] == [number < vocab for number in ids]
    packed = np.array(ids, dtype="<i4").tobytes()
    assert names.of_bytes(packed) == np.array(renamed, dtype="<i4").tobytes()


def test_ids_that_no_vocabulary_has_stay_what_they_are() -> None:
    assert NAMES.of_ids([-1, VOCAB, 2**31 - 1]) == (-1, VOCAB, 2**31 - 1)
    assert NAMES.of_ids([-1, 5]) == (-1, *NAMES.of_ids([5]))


def test_another_key_gives_other_pseudonyms() -> None:
    ids = np.arange(VOCAB, dtype=np.int32)
    other = Pseudonyms(bytes(KEY_BYTES), VOCAB)
    # Two random permutations agree on one id on average; the keys are fixed.
    assert (other.of_column(ids) == NAMES.of_column(ids)).sum() <= 8


def test_a_column_of_any_shape_keeps_its_shape() -> None:
    blocks = np.arange(24, dtype=np.int32).reshape(3, 8)
    assert NAMES.of_column(blocks).shape == (3, 8)
    assert NAMES.of_column(blocks)[1, 2] == NAMES.of_ids([10])[0]
    assert NAMES.of_column(blocks[:, 1]).tolist() == list(NAMES.of_ids([1, 9, 17]))
    assert NAMES.of_column(np.empty(0, dtype=np.int32)).shape == (0,)


def test_salts_are_told_apart_and_not_told() -> None:
    assert NAMES.of_word("") == ""
    assert NAMES.of_word("tenant") == NAMES.of_word("tenant") != NAMES.of_word("Tenant")
    assert "tenant" not in NAMES.of_word("tenant")
    assert TrueIds(KEY).of_word("tenant") == NAMES.of_word("tenant")
    assert Pseudonyms(bytes(KEY_BYTES), VOCAB).of_word("tenant") != NAMES.of_word("tenant")


def test_true_ids_stay_what_they_are() -> None:
    column = np.array([3, 1, 3], dtype=np.int32)
    assert TrueIds(KEY).of_column(column).tolist() == [3, 1, 3]
    assert TrueIds(KEY).of_bytes(column.tobytes()) == column.tobytes()
    assert TrueIds(KEY).of_ids([3, 1]) == (3, 1)
