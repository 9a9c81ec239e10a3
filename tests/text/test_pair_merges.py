"""Merging against its definition, word for word."""

from __future__ import annotations

from array import array
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.text.pair_merges import PairMerges, RankedPair

SIZE = 12
IDS = st.integers(0, SIZE - 1)
PAIRS = st.lists(st.tuples(st.integers(0, 5), IDS, IDS, IDS), max_size=30, unique_by=lambda pair: pair[1:3])


def defined(symbols: list[int], pairs: list[RankedPair]) -> list[int]:
    """While some neighbours can be merged: the most urgent pair, the leftmost of equals."""
    known = {(left, right): (rank, merged) for rank, left, right, merged in pairs}
    symbols = list(symbols)
    while True:
        found = [(known[pair][0], at) for at, pair in enumerate(pairwise(symbols)) if pair in known]
        if not found:
            return symbols
        _, at = min(found)
        symbols[at : at + 2] = [known[symbols[at], symbols[at + 1]][1]]


@settings(max_examples=400, deadline=None)
@given(pairs=PAIRS, symbols=st.lists(IDS, max_size=40))
def test_both_ways_of_merging_are_the_definition_also_where_ranks_are_equal(
    pairs: list[RankedPair], symbols: list[int]
) -> None:
    expected = defined(symbols, pairs)
    merges = PairMerges(SIZE, pairs, has_ties=True)
    assert merges.merge(list(symbols)) == tuple(expected)
    ids: list[int] = []
    for _ in merges.merge_in_portions(array("i", symbols), ids):
        pass
    assert ids == expected


@settings(max_examples=200, deadline=None)
@given(pairs=PAIRS, symbols=st.lists(IDS, max_size=40))
def test_ranks_that_differ_need_no_look_at_ties(pairs: list[RankedPair], symbols: list[int]) -> None:
    ranked = [(rank, *pair[1:]) for rank, pair in enumerate(pairs)]
    assert PairMerges(SIZE, ranked).merge(list(symbols)) == tuple(defined(symbols, ranked))
