"""What is the chain's own: equal blocks, and matching where each group holds other blocks, against a search."""

import hashlib
from array import array

from hypothesis import given
from hypothesis import strategies as st

from asyncpage.core.block_names import chain_names, root_key
from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.messages import LayerGroup, Prefix

FULL = LayerGroup("full", 0, 1)
ROOT = root_key(4)


def int32(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def prefix(*tokens: int) -> Prefix:
    return Prefix(ROOT, int32(*tokens), chain_names(int32(*tokens), 4))


def test_the_second_of_two_equal_blocks_is_not_held() -> None:
    index = PrefixChain((FULL,), 4)
    wanted = prefix(*range(4))
    first = index.publish(index.begin(ROOT), wanted.names[0], wanted.tokens, [1])
    second = index.publish(index.begin(ROOT), wanted.names[0], wanted.tokens, [2])
    assert first is not None
    assert second is first
    assert (index.holds(1), index.holds(2)) == (True, False)
    assert index.match(wanted, 4).blocks == ((1,),)
    index.forget(2)
    assert index.match(wanted, 4).blocks == ((1,),)
    index.forget(1)
    assert index.match(wanted, 4).blocks == ((),)


def test_a_forged_name_serves_neither_its_own_tokens_nor_anybody_elses() -> None:
    index = PrefixChain((FULL,), 4)
    wanted = prefix(*range(4))
    index.publish(index.begin(ROOT), wanted.names[0], int32(9, 9, 9, 9), [1])  # a digest collision
    assert index.match(wanted, 4).blocks == ((),)
    assert index.publish(index.begin(ROOT), wanted.names[0], wanted.tokens, [2]) is None
    assert not index.holds(2)


def test_a_block_is_found_only_behind_the_very_block_it_was_published_behind() -> None:
    index = PrefixChain((FULL,), 4)
    one, other = prefix(*range(8)), prefix(9, 9, 9, 9, *range(4, 8))
    behind = index.publish(index.begin(ROOT), one.names[0], one.tokens[:16], [1])
    index.publish(behind, one.names[1], one.tokens[16:], [2])
    index.publish(index.begin(ROOT), other.names[0], other.tokens[:16], [3])
    forged = Prefix(ROOT, other.tokens, (other.names[0], one.names[1]))
    assert index.match(forged, 8).blocks == ((3,),)
    assert other.names[1] == hashlib.sha256(other.names[0] + int32(*range(4, 8))).digest()


@given(
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.integers(1, 40),
    st.integers(0, 8),
)
def test_match_finds_the_longest_beginning_that_every_group_can_serve(
    in_full: list[bool], in_window: list[bool], window: int, most: int
) -> None:
    size = 4
    index = PrefixChain((FULL, LayerGroup("window", window, 1)), size)
    wanted = prefix(*range(8 * size))
    branch = index.begin(ROOT)
    for i, name in enumerate(wanted.names):
        blocks = [10 + i if in_full[i] else 0, 50 + i if in_window[i] else 0]
        branch = index.publish(branch, name, wanted.tokens[4 * size * i : 4 * size * (i + 1)], blocks)

    def seen(length: int) -> set[int]:
        # The next token, at length * size, looks back at window - 1 positions before itself.
        return {p // size for p in range(max(0, length * size - window + 1), length * size)}

    def is_served(length: int) -> bool:
        return all(in_full[:length]) and all(in_window[i] for i in seen(length))

    best = max(length for length in range(most + 1) if is_served(length))
    full, windowed = index.match(wanted, most * size).blocks
    assert full == tuple(10 + i for i in range(best))
    assert windowed == tuple(50 + i if i in seen(best) else 0 for i in range(best))
