"""Prompt lookup: against a search through the whole text, however it came."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core.sampling import SamplingParams
from asyncpage.executor.batch import BatchShape, PersistentBatch
from asyncpage.executor.speculation import ngram
from asyncpage.executor.speculation.ngram import NgramProposer
from asyncpage.messages import Int32, NewRow, RequestId

SHAPE = BatchShape(groups=1, block_size=4, blocks=99, max_model_len=400, max_rows=4, max_tokens=400, max_drafts=9)


def ints(*numbers: int) -> Int32:
    return np.array(numbers, dtype=np.int32)


def row(number: int, tokens: Sequence[int]) -> NewRow:
    return NewRow(number, RequestId(1), ints(*tokens).tobytes(), len(tokens), 0, (b"",), SamplingParams(), 0)


def search(tokens: Sequence[int], most: int, shortest: int, longest: int) -> list[int]:
    """Every place in turn, the latest first; what follows the best goes round."""
    best, found = 0, 0
    for place in range(len(tokens) - 1, 0, -1):
        length = 0
        while length < min(longest, place) and tokens[place - 1 - length] == tokens[len(tokens) - 1 - length]:
            length += 1
        if length > best:
            best, found = length, place
    if best < shortest:
        return []
    known = list(tokens)
    for at in range(most):
        known.append(known[found + at])
    return known[len(tokens) :]


def drafts(proposer: NgramProposer, batch: PersistentBatch, asked: dict[int, int]) -> dict[int, list[int]]:
    rows = ints(*asked)
    found = proposer.propose(batch, rows, np.ones_like(rows), ints(*asked.values()))
    tokens = iter(found.tokens.tolist())
    own = {row: [next(tokens) for _ in range(count)] for row, count in zip(asked, found.counts.tolist(), strict=True)}
    assert next(tokens, None) is None
    return own


@settings(max_examples=200, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), min_size=2, max_size=2),
    more=st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=8),
    shortest=st.integers(1, 3),
    longest=st.integers(3, 6),
    most=st.integers(1, 9),
)
def test_drafts_follow_the_longest_match_and_of_equals_the_latest(
    prompts: list[list[int]], more: list[list[int]], shortest: int, longest: int, most: int
) -> None:
    proposer, batch = NgramProposer(shortest, longest), PersistentBatch(SHAPE)
    for number, prompt in enumerate(prompts):
        batch.add(row(number, prompt))
        proposer.add(row(number, prompt))
    known = [list(prompt) for prompt in prompts]
    for tokens in [[], *more]:
        for token in tokens:
            batch.append(ints(0, 1), ints(token, token))
        for one in known:
            one += tokens
        expected = {number: search(one, most, shortest, longest) for number, one in enumerate(known)}
        assert drafts(proposer, batch, {0: most, 1: most}) == expected


def test_rows_that_are_asked_for_none_get_none_and_a_row_that_comes_anew_knows_nothing_of_the_last() -> None:
    proposer, batch = NgramProposer(2, 8), PersistentBatch(SHAPE)
    for number in (0, 1):
        batch.add(row(number, [5, 6, 7, 8, 5, 6]))
        proposer.add(row(number, [5, 6, 7, 8, 5, 6]))
    assert drafts(proposer, batch, {0: 0, 1: 3}) == {0: [], 1: [7, 8, 5]}
    assert drafts(proposer, batch, {0: 0, 1: 0}) == {0: [], 1: []}
    batch.remove(ints(1))
    proposer.remove(1)
    batch.add(row(1, [7, 8, 5, 6]))
    proposer.add(row(1, [7, 8, 5, 6]))
    assert drafts(proposer, batch, {0: 2, 1: 2}) == {0: [7, 8], 1: []}
    proposer.clear()
    assert drafts(proposer, batch, {0: 2}) == {0: [7, 8]}


@pytest.mark.parametrize("most", [64, 3])
def test_a_run_that_is_everywhere_is_looked_at_in_so_many_places_only(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(ngram, "_MOST_PLACES", most)
    tokens = [1, 2, 3, 9] + [5, 2, 3, 4] * 20 + [1, 2, 3]
    proposer, batch = NgramProposer(2, 3), PersistentBatch(SHAPE)
    batch.add(row(0, tokens))
    assert drafts(proposer, batch, {0: 2}) == {0: [9, 5] if most == 64 else [4, 1]}


def test_of_a_long_prompt_its_end_is_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "_MOST_INDEXED", 6)
    proposer, batch = NgramProposer(2, 8), PersistentBatch(SHAPE)
    batch.add(row(0, [1, 2, 9, 8, 1, 2, 3, 4, 1, 2]))
    assert drafts(proposer, batch, {0: 2}) == {0: [3, 4]}
    batch.append(ints(0, 0)[:1], ints(9))
    batch.append(ints(0), ints(8))
    assert drafts(proposer, batch, {0: 2}) == {0: []}  # it was there before the end that is indexed
