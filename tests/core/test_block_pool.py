"""The pool against counts made by hand, and over both indexes against a list that remembers everything."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core.block_names import extend_chain, root_key, root_name
from asyncpage.core.block_pool import BlockPool
from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.prefix_tree import PrefixTree
from asyncpage.messages import LayerGroup

FULL = (LayerGroup("full", 0, 1),)
ROOT = root_key(1)
INDEXES = (PrefixChain, PrefixTree)


def make_pool(blocks: int, index_class: type[PrefixIndex] = PrefixChain) -> tuple[BlockPool, PrefixIndex]:
    index = index_class(FULL, 1)
    return BlockPool(blocks, index), index


def publish(index: PrefixIndex, block: int, token: int) -> None:
    """As a prompt of one token, in a block of one token."""
    tokens = array("i", [token]).tobytes()
    index.publish(index.begin(ROOT), extend_chain(root_name(ROOT), tokens, 1)[0], tokens, [block])


def test_block_zero_is_never_handed_out() -> None:
    pool, _ = make_pool(8)
    assert sorted(pool.take(7)) == [1, 2, 3, 4, 5, 6, 7]
    assert pool.free == 0


def test_blank_blocks_are_reused_before_named_ones_and_named_ones_oldest_first() -> None:
    pool, index = make_pool(6)
    taken = pool.take(5)
    for token, block in enumerate(taken[:2]):
        publish(index, block, token)
    pool.drop([taken[1]])
    pool.drop([taken[0]])
    pool.drop([taken[2], taken[3]])
    assert pool.take(2) == [taken[2], taken[3]]
    assert pool.evicted == 0
    assert pool.take(2) == [taken[1], taken[0]]
    assert pool.evicted == 2
    assert not index.holds(taken[0])


def test_a_shared_block_outlives_its_first_owner() -> None:
    pool, index = make_pool(4)
    (block,) = pool.take(1)
    publish(index, block, 7)
    pool.share([block])
    pool.drop([block])
    assert pool.references(block) == 1
    assert pool.free == 2
    pool.drop([block])
    assert (pool.free, pool.cached) == (3, 1)
    assert pool.count_free([block, 0]) == 1
    pool.share([block])
    assert (pool.free, pool.cached) == (2, 0)
    assert pool.count_free([block, 0]) == 0


MOVES = ("take", "drop", "share", "name", "forget all", "reset")


@pytest.mark.parametrize("index_class", INDEXES)
@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(MOVES[:4] * 6 + MOVES), st.integers(0, 30)), max_size=80))
def test_free_and_cached_and_referenced_are_all_after_any_moves(
    index_class: type[PrefixIndex], moves: Sequence[tuple[str, int]]
) -> None:
    pool, index = make_pool(16, index_class)
    held: list[int] = []  # one entry a reference
    named: set[int] = set()
    cached: list[int] = []  # oldest first
    evicted = 0
    for token, (move, number) in enumerate(moves):
        if move == "take" and number <= pool.free:
            given_up = cached[: max(0, number - (15 - len(set(held)) - len(cached)))]
            fresh = pool.take(number)
            assert not set(fresh) & set(held)
            assert len(set(fresh)) == number
            assert [block for block in fresh if block in cached] == given_up
            cached = cached[len(given_up) :]
            named -= set(given_up)
            evicted += len(given_up)
            held += fresh
        elif move == "drop" and held:
            block = held.pop(number % len(held))
            pool.drop([block, 0])
            if block in named and block not in held:
                cached.append(block)
        elif move == "share" and set(held) | set(cached):
            block = sorted(set(held) | set(cached))[number % len(set(held) | set(cached))]
            pool.share([0, block])
            held.append(block)
            cached = [other for other in cached if other != block]
        elif move == "name" and set(held) - named:
            block = sorted(set(held) - named)[number % len(set(held) - named)]
            publish(index, block, token)
            named.add(block)
        elif move == "forget all":
            index.clear()
            assert pool.forget_cached() == len(cached)
            named, cached = set(), []
        elif move == "reset":
            pool.reset()
            held, named, cached = [], set(), []
        assert {block for block in range(16) if index.holds(block)} == named
        assert (pool.referenced(), pool.cached, pool.evicted) == (len(set(held)), len(cached), evicted)
        assert pool.blank + pool.cached + pool.referenced() == pool.free + pool.referenced() == pool.total == 15
        assert [pool.references(block) for block in range(1, 16)] == [held.count(block) for block in range(1, 16)]
        assert pool.count_free(range(1, 16)) == pool.free


def test_a_look_counts_up_to_what_a_byte_holds_and_changes_nothing() -> None:
    pool = BlockPool(6, PrefixChain((LayerGroup("full", 0, 1),), 4))
    blocks = pool.take(3)
    for _ in range(300):
        pool.share(blocks[:1])
    assert pool.look(0, 6) == (bytes([1, 255, 1, 1, 0, 0]), bytes(6))
    assert (pool.free, pool.references(blocks[0])) == (2, 301)
