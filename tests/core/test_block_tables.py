"""The moves of blocks between rows and the pool, with block counts made by hand."""

import numpy as np
import pytest

from asyncpage.core.block_tables import BlockTables
from asyncpage.core.prefix_chain import chain_names, root_name
from asyncpage.messages import FilledBlocks, Int32, LayerGroup

FULL = LayerGroup("full", 0, 1)
WINDOW = LayerGroup("window", 6, 1)
PROMPT = np.arange(12, dtype=np.int32).tobytes()
NAMES = chain_names(PROMPT, 4)


def make(*groups: LayerGroup, blocks: int = 20) -> BlockTables:
    return BlockTables(blocks=blocks + 1, block_size=4, groups=groups or (FULL,), rows=4, max_tokens=64)


def ints(*numbers: int) -> Int32:
    return np.array(numbers, dtype=np.int32)


def open_row(tables: BlockTables, row: int, entries: int, *, step: int = 1, feeds: bool = True) -> list[int]:
    """A row with that many fresh blocks a group, named by step `step`; the first group's blocks."""
    tables.open(row, root=root_name(4), names=NAMES, feeds=feeds)
    tables.extend(ints(row), ints(entries))
    tables.last_step[row] = step
    held: list[int] = tables.tables[0, row, :entries].tolist()
    return held


def test_rows_get_their_blocks_in_every_group_and_the_columns_say_which() -> None:
    tables = make(FULL, WINDOW)
    for row, entries in ((0, 1), (2, 0)):
        open_row(tables, row, entries)
    new = tables.extend(ints(0, 2), ints(2, 1))
    assert new[:, :3].tolist() == [[0, 0, 1], [0, 0, 2], [2, 0, 0], [0, 1, 1], [0, 1, 2], [2, 1, 0]]
    assert len(set(new[:, 3].tolist())) == 6
    for row, group, index, block in new.tolist():
        assert tables.tables[group, row, index] == block
    assert tables.held.tolist() == [3, 0, 1, 0]


def test_a_released_row_gives_its_blocks_back_tail_first_when_its_last_step_is_back() -> None:
    tables = make(blocks=3)
    blocks = open_row(tables, 0, 3, step=5)
    tables.release(0, returned=4)
    assert (tables.pool.free, tables.leaving, tables.ledger().referenced) == (0, 3, 3)
    tables.collect(returned=4)
    assert tables.pool.free == 0
    tables.collect(returned=5)
    assert (tables.pool.free, tables.leaving) == (3, 0)
    assert tables.pool.take(3) == blocks[::-1]


def test_a_copied_block_stays_until_the_step_that_copies_it_is_back() -> None:
    tables = make()
    (first, last) = open_row(tables, 0, 2)
    tables.open(1, root=root_name(4), names=NAMES, feeds=True)
    tables.adopt(1, tables.beginning(0, 7))
    ((source, destination),) = tables.copy_last(1, step=2)
    assert source == last
    assert tables.tables[0, 1, :2].tolist() == [first, destination]
    tables.release(0, returned=2)
    assert tables.pool.references(source) == 1
    tables.collect(returned=1)
    assert tables.pool.references(source) == 1
    tables.collect(returned=2)
    assert (tables.pool.references(source), tables.pool.references(first)) == (0, 1)


def test_a_row_that_has_dropped_what_a_sibling_would_look_at_cannot_be_forked() -> None:
    tables = make(FULL, WINDOW)
    open_row(tables, 0, 5)
    assert tables.can_fork(0, 8)
    # The token at 18 sees 13..18, so blocks 0..2 (0..11) go from the window's table; the one at 8 would see 3..8.
    assert tables.drop_behind_window(0, 18, step=2) == [(0, 1, 0, 0), (0, 1, 1, 0), (0, 1, 2, 0)]
    assert tables.drop_behind_window(0, 18, step=3) == []
    assert not tables.can_fork(0, 8)
    assert tables.can_fork(0, 18)
    assert tables.leaving == 3


@pytest.mark.parametrize("feeds", [True, False])
def test_full_blocks_are_published_only_for_a_row_that_feeds_the_cache(feeds: bool) -> None:
    tables = make()
    blocks = open_row(tables, 0, 3, feeds=feeds)
    tables.name(FilledBlocks(0, 0, 2, b""))
    assert tables.index.match(NAMES, 3) == ((tuple(blocks[:2]) if feeds else ()),)


def test_the_first_of_two_equal_blocks_keeps_the_name() -> None:
    tables = make()
    first, second = open_row(tables, 0, 1), open_row(tables, 1, 1)
    for row in (0, 1):
        tables.name(FilledBlocks(row, 0, 1, b""))
    assert tables.index.match(NAMES, 1) == ((first[0],),)
    assert not tables.index.holds(second[0])


@pytest.mark.parametrize("forget", [True, False])
def test_a_reset_frees_rows_and_what_steps_in_flight_held(forget: bool) -> None:
    tables = make()
    open_row(tables, 0, 3, step=9)
    open_row(tables, 1, 2, step=9)
    tables.name(FilledBlocks(1, 0, 1, b""))
    tables.release(0, returned=1)
    tables.reset(forget=forget)
    ledger = tables.ledger()
    assert (ledger.referenced, ledger.leaving, ledger.cached) == (0, 0, 0 if forget else 1)
    assert tables.held.tolist() == [0, 0, 0, 0]
