"""Names against hashlib by hand, and root keys against their spelling."""

import hashlib
import subprocess
import sys
from array import array

from hypothesis import given
from hypothesis import strategies as st

from asyncpage.core.block_names import NAME_BYTES, chain_names, extend_chain, root_key, root_name


def int32(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def test_a_name_is_the_digest_of_its_parent_and_its_tokens() -> None:
    first, second = chain_names(int32(*range(9)), 4)
    root = hashlib.sha256(root_key(4)).digest()
    assert root_name(root_key(4)) == root
    assert first == hashlib.sha256(root + int32(0, 1, 2, 3)).digest()
    assert second == hashlib.sha256(first + int32(4, 5, 6, 7)).digest()
    assert len(second) == NAME_BYTES


def test_a_chain_can_be_extended_later_with_the_same_names() -> None:
    whole = chain_names(int32(*range(12)), 4, salt="s")
    begun = chain_names(int32(*range(4)), 4, salt="s")
    assert whole == begun + extend_chain(begun[-1], int32(*range(4, 12)), 4)


def test_a_block_that_is_not_full_has_no_name() -> None:
    assert chain_names(int32(*range(3)), 4) == ()
    assert chain_names(int32(*range(7)), 4) == chain_names(int32(*range(4)), 4)
    assert chain_names(b"", 4) == ()


def test_a_root_key_spells_its_parts_each_behind_its_length() -> None:
    def part(word: bytes) -> bytes:
        return len(word).to_bytes(4, "little") + word

    spelled = b"".join(map(part, (b"block", b"16", b"adapter", b"load 7", b"salt", "é".encode())))
    assert root_key(16, salt="é", adapter="load 7").endswith(spelled)


def test_salt_adapter_and_block_size_separate_and_cannot_be_spelled_into_one_another() -> None:
    keys = [
        root_key(16),
        root_key(32),
        root_key(16, salt="a"),
        root_key(16, adapter="a"),
        root_key(16, salt="aadapter"),
        root_key(16, salt="a", adapter="adapter"),
        root_key(16, salt="", adapter="asalt"),
    ]
    assert len(set(keys)) == len(keys)
    assert len(set(map(root_name, keys))) == len(keys)


WORDS = st.text(alphabet="asalt\x04\x00\ud800", max_size=6)
PARTS = st.tuples(st.sampled_from([1, 4, 16]), WORDS, WORDS)


@given(PARTS, PARTS)
def test_two_keys_are_equal_only_when_all_their_parts_are(a: tuple[int, str, str], b: tuple[int, str, str]) -> None:
    keys = [root_key(size, salt=salt, adapter=adapter) for size, salt, adapter in (a, b)]
    assert (keys[0] == keys[1]) == (a == b)


def test_a_name_is_the_same_in_another_process() -> None:
    code = (
        "from asyncpage.core.block_names import chain_names\n"
        "from array import array\n"
        "print(chain_names(array('i', range(8)).tobytes(), 4, salt='é', adapter='x')[-1].hex())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == chain_names(int32(*range(8)), 4, salt="é", adapter="x")[-1].hex()
