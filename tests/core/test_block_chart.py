"""The picture of the pool against what every row, the pool and the index say one by one."""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core import block_chart
from asyncpage.core.block_chart import draw, look_at
from asyncpage.core.block_names import chain_names, root_key
from asyncpage.core.block_tables import BlockTables
from asyncpage.core.explanation import Explanations
from asyncpage.core.obituaries import Obituaries
from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.prefix_tree import PrefixTree
from asyncpage.messages import BlockChart, BlockSight, Holder, LayerGroup, Prefix, RequestId

SIZE = 4
FULL = LayerGroup("full", 0, 1)
WINDOW = LayerGroup("window", 6, 1)
ROOT = root_key(SIZE)
INDEXES = (PrefixChain, PrefixTree)

T = TypeVar("T")
both_indexes = pytest.mark.parametrize("index", INDEXES)


def make(index: type[PrefixIndex], *groups: LayerGroup, blocks: int = 40) -> BlockTables:
    groups = groups or (FULL,)
    return BlockTables(
        blocks=blocks + 1, block_size=SIZE, groups=groups, rows=6, max_tokens=64, index=index(groups, SIZE)
    )


def finished(slices: Generator[None, None, T]) -> T:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def sight(tables: BlockTables, block: int) -> BlockSight:
    found = finished(look_at(tables, Explanations(Obituaries(), SIZE), block))
    assert found is not None
    return found


def int32(tokens: Sequence[int]) -> bytes:
    return array("i", tokens).tobytes()


def open_row(tables: BlockTables, row: int, tokens: Sequence[int], request: int | None = None) -> list[int]:
    """A row that begins on what is cached of `tokens`, and has fresh blocks for the rest; its blocks."""
    data = int32(tokens)
    prefix = Prefix(ROOT, data, chain_names(data, SIZE))
    match = tables.index.match(prefix, len(tokens) - 1)
    shared = len(match.blocks[0])
    tables.open(row, RequestId(request or 100 + row), prefix, published=shared, branch=match.branch)
    tables.adopt(row, match.blocks, tables.entries(len(tokens)) - shared)
    found: list[int] = tables.tables[0, row, : tables.held[row]].tolist()
    return found


def fill(tables: BlockTables, row: int, tokens: Sequence[int]) -> None:
    """Every full block of the row is computed."""
    life = tables.life(row)
    assert life is not None
    first, last = life.published, len(tokens) // SIZE
    filled = np.array([[row, index] for index in range(first, last)], dtype=np.int32).reshape(-1, 2)
    columns = np.array(tokens[first * SIZE : last * SIZE], dtype=np.int32).reshape(-1, SIZE)
    tables.publish(filled, columns)


PROMPT = list(range(10, 24))  # three full blocks and a half


@both_indexes
def test_a_block_is_with_its_row_its_holders_and_its_name(index: type[PrefixIndex]) -> None:
    tables = make(index)
    first = open_row(tables, 2, PROMPT)
    fill(tables, 2, PROMPT)
    second = open_row(tables, 4, [*PROMPT[:8], 1, 2, 3])
    chart = finished(draw(tables))
    assert second[:2] == first[:2]
    own = [*first[2:], *second[2:]]
    assert {block: int(chart.references[block]) for block in first[:2]} == dict.fromkeys(first[:2], 2)
    assert {block: int(chart.references[block]) for block in own} == dict.fromkeys(own, 1)
    assert [int(chart.owners[block]) for block in first[2:]] == [2, 2]
    assert [int(chart.owners[block]) for block in second[2:]] == [4]
    assert np.flatnonzero(chart.named).tolist() == sorted(first[:3])
    assert chart.requests.tolist() == [0, 0, 102, 0, 104, 0]
    assert int((chart.references == 0).sum()) == len(chart.references) - len({*first, *second})


@both_indexes
def test_what_is_given_back_is_cached_or_blank_and_nobodys(index: type[PrefixIndex]) -> None:
    tables = make(index)
    blocks = open_row(tables, 0, PROMPT)
    fill(tables, 0, PROMPT)
    tables.release(0, returned=0)
    chart = finished(draw(tables))
    assert chart.owners.tolist() == [-1] * len(chart.owners)
    assert not chart.references.any()
    assert np.flatnonzero(chart.named).tolist() == sorted(blocks[:3])
    assert int(chart.named.sum()) == tables.pool.cached


@both_indexes
def test_a_block_that_a_step_in_flight_may_name_is_referenced_and_in_no_row(index: type[PrefixIndex]) -> None:
    tables = make(index)
    blocks = open_row(tables, 0, PROMPT)
    tables.step = 5
    tables.release(0, returned=3)
    chart = finished(draw(tables))
    assert [int(chart.references[block]) for block in blocks] == [1] * 4
    assert [int(chart.owners[block]) for block in blocks] == [-1] * 4


@both_indexes
def test_block_0_is_nobodys_also_behind_a_window(index: type[PrefixIndex]) -> None:
    tables = make(index, FULL, WINDOW)
    open_row(tables, 0, list(range(30)))
    fill(tables, 0, list(range(30)))
    assert tables.drop_behind_window(0, 30)
    chart = finished(draw(tables))
    assert (int(chart.owners[0]), int(chart.references[0]), bool(chart.named[0])) == (-1, 0, False)


@both_indexes
def test_a_block_from_near_tells_its_tokens_its_chain_and_who_holds_it(index: type[PrefixIndex]) -> None:
    tables = make(index)
    first = open_row(tables, 2, PROMPT)
    fill(tables, 2, PROMPT)
    open_row(tables, 4, [*PROMPT[:8], 1, 2, 3])
    names = chain_names(int32(PROMPT), SIZE)
    assert sight(tables, first[1]) == BlockSight(
        block=first[1],
        references=2,
        name=names[1],
        parent=names[0],
        tokens=int32(PROMPT[4:8]),
        chain=(first[0],),
        holders=(Holder(2, RequestId(102), "", 0, 1), Holder(4, RequestId(104), "", 0, 1)),
    )
    assert (sight(tables, first[0]).parent, sight(tables, first[0]).chain) == (b"", ())


@both_indexes
def test_a_block_without_a_name_tells_what_its_row_came_with(index: type[PrefixIndex]) -> None:
    tables = make(index)
    blocks = open_row(tables, 1, PROMPT)
    found = sight(tables, blocks[3])
    assert (found.name, found.tokens, found.chain) == (b"", int32(PROMPT[12:]), tuple(blocks[:3]))
    tables.extend(np.array([1], dtype=np.int32), np.array([1], dtype=np.int32))
    later = sight(tables, int(tables.tables[0, 1, 4]))
    assert (later.tokens, later.holders) == (b"", (Holder(1, RequestId(101), "", 0, 4),))


@both_indexes
def test_a_blank_block_has_nothing_to_tell_and_a_number_that_is_none_is_none(index: type[PrefixIndex]) -> None:
    tables = make(index)
    assert sight(tables, 7) == BlockSight(7, 0, b"", b"", b"", (), ())
    for block in (0, -1, 41, 10**9):
        assert finished(look_at(tables, Explanations(Obituaries(), SIZE), block)) is None


@both_indexes
def test_a_tail_has_no_name_and_the_tokens_that_it_lends(index: type[PrefixIndex]) -> None:
    tables = make(index)
    blocks = open_row(tables, 0, PROMPT)
    fill(tables, 0, PROMPT)
    tables.release(0, returned=0, tail=int32(PROMPT[12:]))
    found = tables.index.contents(blocks[3])
    assert found is not None
    names = chain_names(int32(PROMPT), SIZE)
    assert (found.name, found.parent, found.tokens, found.chain) == (
        b"",
        names[2],
        int32(PROMPT[12:]),
        tuple(blocks[:3]),
    )


@both_indexes
@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=26), min_size=1, max_size=6),
    ends=st.sets(st.integers(0, 5)),
)
def test_the_contents_of_every_held_block_lead_to_its_name(
    index: type[PrefixIndex], prompts: list[list[int]], ends: set[int]
) -> None:
    tables = make(index, blocks=60)
    for row, prompt in enumerate(prompts):
        open_row(tables, row, prompt)
        fill(tables, row, prompt)
        if row in ends:
            tables.release(row, returned=0, tail=int32(prompt[len(prompt) // SIZE * SIZE :]))
    for block in range(1, tables.pool.total + 1):
        found = tables.index.contents(block)
        assert (found is not None) == tables.index.holds(block)
        if found is None:
            continue
        whole = b""
        for before in found.chain:
            one = tables.index.contents(before)
            assert one is not None
            whole += one.tokens
        names = chain_names(whole + found.tokens, SIZE)
        if found.name:
            assert found.name == names[-1]
        assert found.parent == (names[len(found.chain) - 1] if found.chain else b"")


def test_a_large_pool_is_drawn_in_slices_and_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = make(PrefixChain)
    for row, length in enumerate((14, 30, 9)):
        prompt = [row * 50 + token for token in range(length)]
        open_row(tables, row, prompt)
        fill(tables, row, prompt)
    whole = finished(draw(tables))
    monkeypatch.setattr(block_chart, "BLOCKS_AT_ONCE", 7)
    slices, count = draw(tables), 0
    found: BlockChart | None = None
    while found is None:
        try:
            next(slices)
            count += 1
        except StopIteration as end:
            found = end.value
    assert count >= 41 // 7
    for name in ("owners", "references", "named", "requests"):
        assert getattr(found, name).tolist() == getattr(whole, name).tolist()


def test_a_row_that_leaves_between_two_slices_leaves_no_owner_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = make(PrefixChain)
    monkeypatch.setattr(block_chart, "BLOCKS_AT_ONCE", 1)
    blocks = open_row(tables, 0, PROMPT) + open_row(tables, 1, [99, *PROMPT])
    slices = draw(tables)
    next(slices)
    tables.release(0, returned=0)
    tables.release(1, returned=0)
    chart = finished(slices)
    assert [int(chart.owners[block]) for block in blocks] == [-1] * len(blocks)
