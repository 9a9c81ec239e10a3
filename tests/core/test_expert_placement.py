"""Experts on ranks: in turn, or by what they have served."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from asyncpage.core.expert_placement import by_load, rank_tokens, round_robin


def test_without_a_load_experts_are_dealt_in_turn() -> None:
    assert round_robin(5, 2) == (0, 1, 0, 1, 0)
    assert round_robin(3, 3) == (0, 1, 2)


def test_the_busiest_experts_are_parted() -> None:
    # In turn the first rank would have 170 of 200.
    tokens = (90, 10, 80, 20)
    assert rank_tokens(tokens, round_robin(4, 2), 2) == (170, 30)
    assert rank_tokens(tokens, by_load(tokens, 2), 2) == (100, 100)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_no_rank_holds_more_than_one_expert_more_than_another(tokens: list[int], ranks: int) -> None:
    for owners in (by_load(tokens, ranks), round_robin(len(tokens), ranks)):
        held = [owners.count(rank) for rank in range(ranks)]
        assert sum(held) == len(tokens)
        assert max(held) - min(held) <= 1
        assert sum(rank_tokens(tokens, owners, ranks)) == sum(tokens)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=6))
def test_two_ranks_are_never_far_from_the_best_there_is(tokens: list[int]) -> None:
    most = max(rank_tokens(tokens, by_load(tokens, 2), 2))
    size = len(tokens)
    halves = [owners for owners in product((0, 1), repeat=size) if abs(2 * sum(owners) - size) <= 1]
    best = min(max(rank_tokens(tokens, owners, 2)) for owners in halves)
    assert most <= best + max(tokens)
