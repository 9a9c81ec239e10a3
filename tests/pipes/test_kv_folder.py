"""A bounded folder of blocks: what is kept, what goes first, what is never touched."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.errors import FormatError, UsageError
from asyncpage.messages import BlockLabel
from asyncpage.pipes.kv_file import file_bytes
from asyncpage.pipes.kv_folder import KvFolder, Shelf, prepare_folder

SIZE = 400
NOW = 1_700_000_000.0


def label(number: int) -> BlockLabel:
    return BlockLabel(number.to_bytes(32, "little"), 0, b"p" * 32, number.to_bytes(8, "little"), b"o" * 32)


FILE = file_bytes(label(0), SIZE)


def payload(number: int) -> bytes:
    return number.to_bytes(4, "little") * (SIZE // 4)


def store(folder: KvFolder, number: int) -> list[int]:
    """Numbers of the blocks that went for it."""
    contents = memoryview(payload(number))
    removed = folder.make_room(label(number), contents)
    folder.store(label(number), contents)
    return [int.from_bytes(key[:32], "little") for key in removed]


def fetch(folder: KvFolder, number: int) -> bytes:
    into = bytearray(SIZE)
    folder.fetch(label(number), memoryview(into))
    return bytes(into)


def numbers(shelf: Shelf) -> list[int]:
    return [int.from_bytes(one.name, "little") for one in shelf.labels]


def age(path: Path, model: str, number: int, seconds: float) -> None:
    os.utime(next(path.glob(f"*{label(number).key.hex()}*")), (NOW - seconds, NOW - seconds))


def test_a_restarted_server_finds_what_was_stored_the_longest_unused_first(tmp_path: Path) -> None:
    folder = KvFolder(tmp_path, "m", 10 * FILE)
    assert folder.scan(NOW) == Shelf((), 0, 0)
    for number in range(4):
        store(folder, number)
    for number, seconds in ((0, 10), (1, 40), (2, 20), (3, 30)):
        age(tmp_path, "m", number, seconds)
    again = KvFolder(tmp_path, "m", 10 * FILE)
    shelf = again.scan(NOW)
    assert (numbers(shelf), shelf.damaged, shelf.foreign) == ([1, 3, 2, 0], 0, 0)
    assert [fetch(again, number) for number in range(4)] == [payload(number) for number in range(4)]


def test_use_is_remembered_by_the_next_server_too(tmp_path: Path) -> None:
    folder = KvFolder(tmp_path, "m", 10 * FILE)
    for number in range(4):
        store(folder, number)
        age(tmp_path, "m", number, 100 - number)
    fetch(folder, 1)
    folder.touch([label(0).key, label(99).key])
    again = KvFolder(tmp_path, "m", 2 * FILE)
    assert set(numbers(again.scan(NOW))) == {0, 1}
    assert len(list(tmp_path.iterdir())) == 2


def test_files_of_another_model_and_of_nobody_are_counted_and_ours_alone_are_served(tmp_path: Path) -> None:
    other = KvFolder(tmp_path, "other", 10 * FILE)
    store(other, 7)
    age(tmp_path, "other", 7, 1000)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "broken.kv").write_bytes(b"asyncpkv" + bytes(300))
    folder = KvFolder(tmp_path, "m", 2 * FILE)
    assert folder.scan(NOW) == Shelf((), damaged=1, foreign=1)
    assert store(folder, 1) == []
    # The bound is the folder's: the other model's block, the longest unused, goes first, and is nobody's here to tell.
    assert store(folder, 2) == []
    assert store(folder, 3) == [1]
    assert {entry.name for entry in tmp_path.iterdir()} >= {"notes.txt", "broken.kv"}
    with pytest.raises(FileNotFoundError):
        fetch(other, 7)
    assert KvFolder(tmp_path, "m", 10 * FILE).scan(NOW).damaged == 1


def test_a_block_under_anothers_file_name_is_not_served(tmp_path: Path) -> None:
    folder = KvFolder(tmp_path, "m", 10 * FILE)
    store(folder, 1)
    next(tmp_path.iterdir()).rename(tmp_path / "renamed.kv")
    again = KvFolder(tmp_path, "m", 10 * FILE)
    assert again.scan(NOW) == Shelf((), damaged=0, foreign=1)


def test_a_damaged_block_is_an_error_and_gone(tmp_path: Path) -> None:
    folder = KvFolder(tmp_path, "m", 10 * FILE)
    store(folder, 1)
    path = next(tmp_path.iterdir())
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    with pytest.raises(FormatError, match="checksum"):
        fetch(folder, 1)
    assert list(tmp_path.iterdir()) == []
    store(folder, 1)
    assert fetch(folder, 1) == payload(1)


def test_a_block_that_somebody_removed_is_an_error_and_counts_no_more(tmp_path: Path) -> None:
    folder = KvFolder(tmp_path, "m", 2 * FILE)
    store(folder, 1)
    next(tmp_path.iterdir()).unlink()
    with pytest.raises(FileNotFoundError):
        fetch(folder, 1)
    assert store(folder, 2) == store(folder, 3) == []


def test_discarding_removes_this_models_blocks_only(tmp_path: Path) -> None:
    other, folder = KvFolder(tmp_path, "other", 10 * FILE), KvFolder(tmp_path, "m", 10 * FILE)
    store(other, 5)
    folder.scan(NOW)
    for number in range(3):
        store(folder, number)
    folder.discard()
    assert fetch(other, 5) == payload(5)
    assert len(list(tmp_path.iterdir())) == 1


def test_unfinished_files_of_dead_servers_are_removed_and_young_ones_left(tmp_path: Path) -> None:
    old, young = tmp_path / ".a.kv.1.part", tmp_path / ".b.kv.2.part"
    for path, seconds in ((old, 4000), (young, 5)):
        path.write_bytes(b"half")
        os.utime(path, (NOW - seconds, NOW - seconds))
    assert KvFolder(tmp_path, "m", FILE).scan(NOW) == Shelf((), 0, 0)
    assert [entry.name for entry in tmp_path.iterdir()] == [young.name]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["store", "fetch", "touch"]), st.integers(0, 6)), max_size=30))
def test_what_is_kept_is_what_a_list_in_order_of_use_keeps(
    tmp_path_factory: pytest.TempPathFactory, work: list[tuple[str, int]]
) -> None:
    path = tmp_path_factory.mktemp("kv")
    folder = KvFolder(path, "m", 3 * FILE)
    order: list[int] = []
    for what, number in work:
        if what == "store":
            expected = [] if number in order or len(order) < 3 else order[:1]
            if number not in order:
                assert store(folder, number) == expected
                order = [*order[len(expected) :], number]
        elif number in order:
            if what == "fetch":
                assert fetch(folder, number) == payload(number)
            else:
                folder.touch([label(number).key])
            order = [*(one for one in order if one != number), number]
        elif what == "fetch":
            with pytest.raises(FileNotFoundError):
                fetch(folder, number)
        assert sum(entry.stat().st_size for entry in path.iterdir()) <= 3 * FILE
    assert set(numbers(KvFolder(path, "m", 3 * FILE).scan(NOW))) == set(order)


def test_a_new_folder_is_closed_to_others(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    prepare_folder(tmp_path / "a" / "b")


def test_a_folder_that_others_can_write_or_that_cannot_be_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(UsageError, match="chmod 700"):
        prepare_folder(shared)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--kv-dir"):
        prepare_folder(tmp_path / "file")
    with pytest.raises(UsageError, match="--kv-dir"):
        prepare_folder(tmp_path / "file" / "below")
