"""Pseudonyms of blocks become today's names again: by the chain, or where today's code stores the same block."""

from __future__ import annotations

import random
from array import array
from hashlib import blake2b

from asyncpage.core.block_names import chain_names, root_key
from asyncpage.core.block_proof import next_proof, root_proof
from asyncpage.messages import NO_PARENT, BlockLabel
from asyncpage.pipes.journal.pseudonym import KEY_BYTES, Pseudonyms
from asyncpage.replay.block_names import BlockNames

SIZE = 4
KEY = Pseudonyms(bytes(KEY_BYTES), 100)


def labels_of(tokens: list[int], salt: str, groups: int = 1) -> list[BlockLabel]:
    """What today's code calls the full blocks of these tokens."""
    data = array("i", tokens).tobytes()
    key = root_key(SIZE, salt=salt)
    parent, proof = NO_PARENT, root_proof(key)
    labels = []
    for index, name in enumerate(chain_names(data, SIZE, salt=salt)):
        block = data[16 * index : 16 * index + 16]
        proof = next_proof(proof, block)
        labels += [BlockLabel(name, group, parent, block, proof) for group in range(groups)]
        parent = name
    return labels


def recorded(labels: list[BlockLabel], true_salt: str) -> list[BlockLabel]:
    """The same as a journal tells them: the names are those that were made with the true salt and ids."""

    def pseudonym(name: bytes) -> bytes:
        return NO_PARENT if name == NO_PARENT else blake2b(true_salt.encode() + name, digest_size=16).digest()

    return [BlockLabel(pseudonym(one.name), one.group, pseudonym(one.parent), one.tokens, b"") for one in labels]


def test_labels_that_hang_on_a_known_root_get_the_names_that_the_chain_gives_in_any_order() -> None:
    today = labels_of(list(range(20)), "s", groups=2) + labels_of([*range(8), 9, 9, 9, 9], "s", groups=2)
    today = list({(one.name, one.group): one for one in today}.values())
    told = recorded(today, "salt")
    names = BlockNames(SIZE)
    names.learn_root(told[0].name, "s", "")
    order = random.Random(3).sample(range(len(today)), len(today))
    assert names.find([told[at] for at in order]) == tuple(today[at] for at in order)
    assert [names.of_digest(one.name) for one in today] == [one.name for one in told]


def test_what_hangs_on_no_known_root_gets_names_of_nobody() -> None:
    stranger = recorded(labels_of(list(range(8)), "s"), "other")
    mine = labels_of(list(range(8)), "s")
    names = BlockNames(SIZE)
    names.learn_root(recorded(mine, "salt")[0].name, "s", "")
    found = names.find(stranger)
    assert {len(one.name) for one in found} == {32}
    assert not {one.name for one in found} & {one.name for one in mine}


def test_a_block_that_today_stores_where_one_was_recorded_has_its_pseudonym() -> None:
    (today,) = labels_of([1, 2, 3, 4], "")
    names = BlockNames(SIZE)
    assert names.of_digest(today.name) == b""
    names.learn((b"n" * 16, NO_PARENT), today)
    assert names.of_digest(today.name) == b"n" * 16
    assert names.find_keys((b"n" * 16 + b"\x01", b"x" * 16 + b"\x00")) == (today.name + b"\x01", b"x" * 32 + b"\x00")
    # The first to be learned stays: another block under the same pseudonym would be a difference.
    (other,) = labels_of([5, 6, 7, 8], "")
    names.learn((b"n" * 16, NO_PARENT), other)
    assert names.of_digest(other.name) == b""


def test_the_names_key_itself_makes_equal_pseudonyms_of_equal_names_only() -> None:
    names = [one.name for one in labels_of(list(range(40)), "")]
    assert len({KEY.of_digest(name) for name in names}) == len(names)
    assert KEY.of_digest(names[0]) == KEY.of_digest(bytes(names[0]))
    assert len(KEY.of_digest(names[0])) == 16
