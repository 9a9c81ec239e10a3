"""The pool against counts made by hand and against the order that the design states."""

from hypothesis import given
from hypothesis import strategies as st

from asyncpage.core.block_pool import BlockPool
from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.messages import LayerGroup

FULL = (LayerGroup("full", 0, 1),)


def make_pool(blocks: int) -> tuple[BlockPool, PrefixChain]:
    index = PrefixChain(FULL, 4)
    return BlockPool(blocks, index), index


def test_block_zero_is_never_handed_out() -> None:
    pool, _ = make_pool(8)
    assert sorted(pool.take(7)) == [1, 2, 3, 4, 5, 6, 7]
    assert pool.free == 0


def test_blank_blocks_are_reused_before_named_ones_and_named_ones_oldest_first() -> None:
    pool, index = make_pool(6)
    taken = pool.take(5)
    for name, block in ((b"a", taken[0]), (b"b", taken[1])):
        index.publish(0, name, block)
    pool.drop([taken[1]])
    pool.drop([taken[0]])
    pool.drop([taken[2], taken[3]])
    assert pool.take(2) == [taken[2], taken[3]]
    assert pool.take(2) == [taken[1], taken[0]]
    assert not index.holds(taken[0])


def test_a_shared_block_outlives_its_first_owner() -> None:
    pool, index = make_pool(4)
    (block,) = pool.take(1)
    index.publish(0, b"a", block)
    pool.share([block])
    pool.drop([block])
    assert pool.references(block) == 1
    assert pool.free == 2
    pool.drop([block])
    assert (pool.free, pool.cached) == (3, 1)
    pool.share([block])
    assert (pool.free, pool.cached) == (2, 0)


@given(st.lists(st.tuples(st.sampled_from(["take", "drop", "share", "name"]), st.integers(0, 30)), max_size=80))
def test_the_ledger_adds_up_after_any_moves(moves: list[tuple[str, int]]) -> None:
    pool, index = make_pool(16)
    held: list[int] = []  # one entry a reference
    for at, (move, number) in enumerate(moves):
        if move == "take" and number <= pool.free:
            fresh = pool.take(number)
            assert not set(fresh) & set(held)
            held += fresh
        elif move == "drop" and held:
            pool.drop([held.pop(number % len(held))])
        elif move == "share" and held:
            block = held[number % len(held)]
            pool.share([block])
            held.append(block)
        elif move == "name" and held:
            block = held[number % len(held)]
            if not index.holds(block):
                index.publish(0, at.to_bytes(4, "little"), block)
        assert pool.referenced() == len(set(held))
        assert pool.free + pool.referenced() == pool.total == 15
        assert all(pool.references(block) == held.count(block) for block in set(held))
