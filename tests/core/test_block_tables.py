"""The moves of blocks between rows and the pool, with block counts made by hand."""

from array import array
from collections.abc import Iterable

import numpy as np
import pytest

from asyncpage.core.block_names import chain_names, root_key
from asyncpage.core.block_tables import BlockTables
from asyncpage.messages import Int32, LayerGroup, Prefix, RequestId

FULL = LayerGroup("full", 0, 1)
WINDOW = LayerGroup("window", 6, 1)
ROOT = root_key(4)
PROMPT = list(range(12))


def make(*groups: LayerGroup, blocks: int = 20) -> BlockTables:
    return BlockTables(blocks=blocks + 1, block_size=4, groups=groups or (FULL,), rows=4, max_tokens=64)


def ints(*numbers: int) -> Int32:
    return np.array(numbers, dtype=np.int32)


def int32(tokens: Iterable[int]) -> bytes:
    return array("i", tokens).tobytes()


def prefix(tokens: Iterable[int]) -> Prefix:
    data = int32(tokens)
    return Prefix(ROOT, data, chain_names(data, 4))


def open_row(
    tables: BlockTables, row: int, entries: int, *, step: int = 1, feeds: bool = True, tokens: list[int] = PROMPT
) -> list[int]:
    """A row with that many fresh blocks a group, opened by step `step`; the first group's blocks."""
    tables.step = step
    branch = tables.index.begin(ROOT) if feeds else None
    tables.open(row, RequestId(row), prefix(tokens), published=0, branch=branch)
    tables.extend(ints(row), ints(entries))
    held: list[int] = tables.tables[0, row, :entries].tolist()
    return held


def publish(
    tables: BlockTables, row: int, first: int, last: int, tokens: list[int] = PROMPT
) -> list[tuple[int, bytes]]:
    filled = np.array([[row, i] for i in range(first, last)], dtype=np.int32)
    return tables.publish(filled, np.array(tokens[4 * first : 4 * last], dtype=np.int32).reshape(-1, 4))


def found(tables: BlockTables, tokens: list[int] = PROMPT) -> tuple[int, ...]:
    return tables.index.match(prefix(tokens), len(tokens)).blocks[0]


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
    blocks = open_row(tables, 0, 3)
    tables.step = 6  # the row was in step 5 at the latest
    tables.release(0, returned=4)
    assert (tables.pool.free, tables.leaving, tables.ledger().referenced) == (0, 3, 3)
    tables.collect(returned=4)
    assert tables.pool.free == 0
    tables.collect(returned=5)
    assert (tables.pool.free, tables.leaving) == (3, 0)
    assert tables.pool.take(3) == blocks[::-1]


def test_a_row_that_no_step_in_flight_names_gives_its_blocks_back_at_once() -> None:
    tables = make(blocks=3)
    open_row(tables, 0, 3)
    tables.step = 6
    tables.release(0, returned=5)
    assert (tables.pool.free, tables.leaving) == (3, 0)


def test_a_copied_block_stays_until_the_step_that_copies_it_is_back() -> None:
    tables = make()
    first, last = open_row(tables, 0, 2)
    tables.step = 2
    tables.open_fork(1, RequestId(1), prefix(PROMPT[:7]), published=1, sibling=0, feeds=True)
    tables.adopt(1, tables.beginning(0, 7))
    ((source, destination, slots),) = tables.copy_last(1, 7)
    assert (source, slots) == (last, 3)
    assert tables.tables[0, 1, :2].tolist() == [first, destination]
    tables.step = 3
    tables.release(0, returned=2)
    assert tables.pool.references(source) == 1
    tables.collect(returned=1)
    assert tables.pool.references(source) == 1
    tables.collect(returned=2)
    assert (tables.pool.references(source), tables.pool.references(first)) == (0, 1)


def test_a_row_that_has_dropped_what_a_sibling_would_look_at_cannot_be_forked() -> None:
    tables = make(FULL, WINDOW)
    open_row(tables, 0, 5, feeds=False)
    assert tables.can_fork(0, 8)
    # The token at 18 sees 13..18, so blocks 0..2 (0..11) go from the window's table; the one at 8 would see 3..8.
    tables.step = 2
    assert tables.drop_behind_window(0, 18) == [(0, 1, 0, 0), (0, 1, 1, 0), (0, 1, 2, 0)]
    tables.step = 3
    assert tables.drop_behind_window(0, 18) == []
    assert not tables.can_fork(0, 8)
    assert tables.can_fork(0, 18)
    assert tables.leaving == 3
    tables.collect(returned=1)
    assert (tables.leaving, tables.ledger().referenced) == (0, 7)


def test_a_row_keeps_what_is_behind_its_window_until_that_is_published() -> None:
    tables = make(FULL, WINDOW)
    open_row(tables, 0, 5)
    assert tables.drop_behind_window(0, 18) == []
    publish(tables, 0, 0, 2)
    assert tables.drop_behind_window(0, 18) == [(0, 1, 0, 0), (0, 1, 1, 0)]
    publish(tables, 0, 2, 3)
    tables.forget_prefixes()  # it publishes no more, so nothing is kept for that
    assert tables.drop_behind_window(0, 20) == [(0, 1, 2, 0)]


@pytest.mark.parametrize("feeds", [True, False])
def test_full_blocks_are_published_only_for_a_row_that_feeds_the_cache(feeds: bool) -> None:
    tables = make()
    blocks = open_row(tables, 0, 3, feeds=feeds)
    told = publish(tables, 0, 0, 2)
    assert found(tables) == (tuple(blocks[:2]) if feeds else ())
    assert [one for one in told if one[1]] == ([(0, name) for name in prefix(PROMPT).names[:2]] if feeds else [])


def test_the_first_of_two_equal_blocks_keeps_the_name() -> None:
    tables = make()
    first, second = open_row(tables, 0, 1), open_row(tables, 1, 1)
    for row in (0, 1):
        publish(tables, row, 0, 1)
    assert found(tables) == (first[0],)
    assert not tables.index.holds(second[0])


def test_blocks_of_several_rows_are_published_in_one_go_each_under_its_own_name() -> None:
    tables = make()
    theirs = list(range(50, 62))
    one, other = open_row(tables, 0, 2), open_row(tables, 1, 2, tokens=theirs)
    filled = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=np.int32)
    tokens = np.array([PROMPT[:4], theirs[:4], theirs[4:8], PROMPT[4:8]], dtype=np.int32)
    told = tables.publish(filled, tokens)
    names = prefix(PROMPT).names, prefix(theirs).names
    assert told == [(0, names[0][0]), (1, names[1][0]), (1, names[1][1]), (0, names[0][1])]
    assert (found(tables), found(tables, theirs)) == (tuple(one), tuple(other))


def test_a_released_rows_last_block_can_be_copied_from_unless_it_feeds_nothing() -> None:
    for feeds, tail in ((True, 2), (False, 0)):
        tables = make()
        blocks = open_row(tables, 0, 3, feeds=feeds)
        publish(tables, 0, 0, 2)
        tables.release(0, returned=1, tail=int32(PROMPT[8:10]))
        match = tables.index.match(prefix(PROMPT), 12)
        assert (match.donors, match.tail) == ((blocks[2],) if feeds else (), tail)
        assert tables.ledger().cached == (3 if feeds else 0)


# --- a reset of the prefix cache while rows run -----------------------------------------------------------------------


def test_nothing_computed_before_prefixes_were_forgotten_is_found_and_rows_keep_their_blocks() -> None:
    tables = make()
    blocks = open_row(tables, 0, 3)
    publish(tables, 0, 0, 1)
    open_row(tables, 1, 1, tokens=[7, 7, 7, 7])
    publish(tables, 1, 0, 1, [7, 7, 7, 7])
    tables.release(1, returned=1)
    assert tables.ledger().cached == 1
    assert tables.forget_prefixes() == 1
    ledger = tables.ledger()
    assert (ledger.cached, ledger.referenced) == (0, 3)
    assert tables.tables[0, 0, :3].tolist() == blocks
    assert found(tables) == found(tables, [7, 7, 7, 7]) == ()
    publish(tables, 0, 1, 3)  # it goes on computing, on what it computed before
    assert found(tables) == ()
    tables.release(0, returned=1, tail=int32([1]))
    assert (tables.ledger().blank, len(tables.index)) == (20, 0)


def test_a_fork_of_a_row_from_before_publishes_nothing_either_though_its_beginning_is_cached_anew() -> None:
    tables = make()
    open_row(tables, 0, 3)
    publish(tables, 0, 0, 2)
    tables.forget_prefixes()
    fresh = open_row(tables, 1, 2)
    publish(tables, 1, 0, 2)
    tables.open_fork(2, RequestId(2), prefix(PROMPT[:10]), published=2, sibling=0, feeds=True)
    tables.adopt(2, tables.beginning(0, 9))
    tables.copy_last(2, 9)  # a block that holds what was computed before
    publish(tables, 2, 2, 3)
    assert found(tables) == tuple(fresh)


def test_a_fork_publishes_behind_its_siblings_blocks_once_these_are_published() -> None:
    tables = make()
    blocks = open_row(tables, 0, 3)
    tables.open_fork(1, RequestId(1), prefix(PROMPT[:10]), published=2, sibling=0, feeds=True)
    tables.adopt(1, tables.beginning(0, 9))
    ((_, own, _),) = tables.copy_last(1, 9)
    publish(tables, 0, 0, 2)
    publish(tables, 1, 2, 3)
    assert found(tables) == (*blocks[:2], own)


@pytest.mark.parametrize("forget", [True, False])
def test_a_reset_frees_rows_and_what_steps_in_flight_held(forget: bool) -> None:
    tables = make()
    open_row(tables, 0, 3, step=9)
    open_row(tables, 1, 2, step=9)
    publish(tables, 1, 0, 1)
    tables.release(0, returned=1)
    tables.reset(forget=forget)
    ledger = tables.ledger()
    assert (ledger.referenced, ledger.leaving, ledger.cached) == (0, 0, 0 if forget else 1)
    assert tables.held.tolist() == [0, 0, 0, 0]
