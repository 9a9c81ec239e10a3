"""Names against hashlib by hand, matching against a search by brute force."""

import hashlib
import subprocess
import sys
from array import array

from hypothesis import given
from hypothesis import strategies as st

from asyncpage.core.prefix_chain import PrefixChain, chain_names, extend_chain, root_name
from asyncpage.messages import LayerGroup


def int32(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def test_a_name_is_the_digest_of_its_parent_and_its_tokens() -> None:
    first, second = chain_names(int32(*range(9)), 4)
    assert first == hashlib.sha256(root_name(4) + int32(0, 1, 2, 3)).digest()
    assert second == hashlib.sha256(first + int32(4, 5, 6, 7)).digest()


def test_a_chain_can_be_extended_later_with_the_same_names() -> None:
    whole = chain_names(int32(*range(12)), 4, salt="s")
    begun = chain_names(int32(*range(4)), 4, salt="s")
    assert whole == begun + extend_chain(begun[-1], int32(*range(4, 12)), 4)


def test_salt_adapter_and_block_size_separate_and_cannot_be_spelled_into_one_another() -> None:
    roots = [
        root_name(16),
        root_name(32),
        root_name(16, salt="a"),
        root_name(16, adapter="a"),
        root_name(16, salt="aadapter"),
        root_name(16, salt="a", adapter="adapter"),
        root_name(16, salt="", adapter="asalt"),
    ]
    assert len(set(roots)) == len(roots)


def test_a_name_is_the_same_in_another_process() -> None:
    code = (
        "from asyncpage.core.prefix_chain import chain_names\n"
        "from array import array\n"
        "print(chain_names(array('i', range(8)).tobytes(), 4, salt='é', adapter='x')[-1].hex())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == chain_names(int32(*range(8)), 4, salt="é", adapter="x")[-1].hex()


def test_the_second_block_of_one_name_is_not_published() -> None:
    index = PrefixChain((LayerGroup("full", 0, 1),), 4)
    assert index.publish(0, b"a", 1)
    assert not index.publish(0, b"a", 2)
    assert index.match([b"a"], 1) == ((1,),)
    index.forget(2)
    assert index.match([b"a"], 1) == ((1,),)
    index.forget(1)
    assert index.match([b"a"], 1) == ((),)


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
    index = PrefixChain((LayerGroup("full", 0, 1), LayerGroup("window", window, 1)), size)
    names = [bytes([i]) for i in range(8)]
    for i in range(8):
        if in_full[i]:
            index.publish(0, names[i], 10 + i)
        if in_window[i]:
            index.publish(1, names[i], 50 + i)

    def is_served(length: int) -> bool:
        # The next token, at length * size, looks back at window - 1 positions before itself.
        seen = {p // size for p in range(max(0, length * size - window + 1), length * size)}
        return all(in_full[:length]) and all(in_window[i] for i in seen)

    best = max(length for length in range(most + 1) if is_served(length))
    full, windowed = index.match(names, most)
    assert full == tuple(10 + i for i in range(best))
    needed = {p // size for p in range(max(0, best * size - window + 1), best * size)}
    assert len(windowed) == best
    assert all(windowed[i] == 50 + i for i in needed)
