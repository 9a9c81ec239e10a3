"""The two passes over memory, with counts made by hand."""

import numpy as np
import pytest

from asyncpage.core.block_tables import BlockTables
from asyncpage.core.prefix_chain import chain_names, root_name
from asyncpage.core.settlement import Rules, settle
from asyncpage.messages import EMPTY, Candidate, FilledBlocks, Granted, Int32, LayerGroup, RequestId, Reserve

FULL = (LayerGroup("full", 0, 1),)
ROOT = root_name(4)


def make_tables(blocks: int, groups: tuple[LayerGroup, ...] = FULL) -> BlockTables:
    return BlockTables(blocks=blocks + 1, block_size=4, groups=groups, rows=8, max_tokens=400)


def ints(*numbers: int) -> Int32:
    return np.array(numbers, dtype=np.int32)


def waiting(request: int, known: int, names: tuple[bytes, ...] = ()) -> Candidate:
    return Candidate(request=RequestId(request), known=known, root=ROOT, names=names)


def reserve(
    number: int,
    *candidates: Candidate,
    rows: Int32 = EMPTY,
    computed: Int32 = EMPTY,
    wants: Int32 = EMPTY,
    budget: int = 100,
    returned: int | None = None,
    released: tuple[int, ...] = (),
    filled: tuple[FilledBlocks, ...] = (),
    free_rows: tuple[int, ...] = (4, 5, 6, 7),
) -> Reserve:
    return Reserve(
        number=number,
        returned=number - 1 if returned is None else returned,
        rows=rows,
        computed=computed,
        wants=wants,
        victims=rows[::-1],
        candidates=candidates,
        budget_tokens=budget,
        free_rows=free_rows,
        released=released,
        filled=filled,
    )


def admit(tables: BlockTables, number: int, row: int, known: int, names: tuple[bytes, ...] = ()) -> Granted:
    granted = settle(tables, Rules(), reserve(number, waiting(row, known, names), free_rows=(row,)))
    assert len(granted.admitted) == 1
    return granted


def test_the_budget_goes_to_running_rows_in_order_and_clips_the_last() -> None:
    tables = make_tables(60)
    for row in range(3):
        admit(tables, row + 1, row, 10)
    rows, computed = ints(0, 1, 2), ints(10, 10, 10)
    granted = settle(tables, Rules(), reserve(4, rows=rows, computed=computed, wants=ints(1, 30, 30), budget=40))
    assert granted.rows.tolist() == [0, 1, 2]
    assert granted.counts.tolist() == [1, 30, 9]


def test_candidates_share_what_the_running_pass_left() -> None:
    tables = make_tables(60)
    admit(tables, 1, 0, 10)
    request = reserve(
        2, waiting(1, 20), waiting(2, 20), waiting(3, 20), rows=ints(0), computed=ints(10), wants=ints(1), budget=32
    )
    granted = settle(tables, Rules(), request)
    assert granted.counts.tolist() == [1, 20, 11]
    assert [admission.row for admission in granted.admitted] == [4, 5]


def test_the_watermark_keeps_blocks_free_except_in_an_empty_engine() -> None:
    rules = Rules(watermark_blocks=3)
    tables = make_tables(10)
    granted = settle(tables, rules, reserve(1, waiting(1, 40), free_rows=(0,)))
    assert len(granted.admitted) == 1
    tables = make_tables(10)
    settle(tables, rules, reserve(1, waiting(1, 20), free_rows=(0,)))  # five blocks, five left
    late = reserve(2, waiting(2, 12), rows=ints(0), computed=ints(20), wants=ints(0), free_rows=(1,))
    assert settle(tables, rules, late).admitted == ()
    small = reserve(3, waiting(2, 8), rows=ints(0), computed=ints(20), wants=ints(0), free_rows=(1,))
    assert len(settle(tables, rules, small).admitted) == 1


def test_nobody_overtakes_a_candidate_that_does_not_fit() -> None:
    tables = make_tables(10)
    admit(tables, 1, 0, 24)
    granted = settle(
        tables, Rules(), reserve(2, waiting(1, 30), waiting(2, 4), rows=ints(0), computed=ints(24), wants=ints(0))
    )
    assert granted.admitted == ()


def test_the_last_in_order_is_preempted_first_and_the_waiting_pass_is_skipped_then() -> None:
    tables = make_tables(6)
    for row in range(3):
        admit(tables, row + 1, row, 8)
    request = reserve(4, waiting(9, 1), rows=ints(0, 1, 2), computed=ints(8, 8, 8), wants=ints(1, 1, 1))
    granted = settle(tables, Rules(), request)
    assert granted.victims == (2,)
    assert granted.rows.tolist() == [0, 1]
    assert granted.blocks[:, 0].tolist() == [0, 1]
    assert granted.admitted == ()


def test_a_row_waits_for_blocks_that_a_step_in_flight_still_names() -> None:
    tables = make_tables(4)
    admit(tables, 1, 0, 8)
    admit(tables, 2, 1, 8)
    one = settle(tables, Rules(), reserve(3, rows=ints(0), computed=ints(8), wants=ints(1), returned=0, released=(1,)))
    assert one.rows.tolist() == []
    assert one.victims == ()
    two = settle(tables, Rules(), reserve(4, rows=ints(0), computed=ints(8), wants=ints(1), returned=2))
    assert two.rows.tolist() == [0]


def test_filled_blocks_are_found_by_the_next_prompt_and_one_token_is_left_to_compute() -> None:
    tables = make_tables(20)
    prompt = np.arange(12, dtype=np.int32)
    names = chain_names(prompt.tobytes(), 4)
    first = admit(tables, 1, 0, 12, names)
    filled = FilledBlocks(row=0, first=0, last=3, tokens=b"")
    granted = settle(tables, Rules(), reserve(2, waiting(1, 12, names), filled=(filled,), free_rows=(1,)))
    admission = granted.admitted[0]
    assert (admission.computed, admission.count) == (8, 4)
    own, shared = (np.frombuffer(a.tables[0], dtype=np.int32) for a in (first.admitted[0], admission))
    assert shared[:2].tolist() == own[:2].tolist()
    assert shared[2] != own[2]


def test_blocks_that_fill_while_a_request_runs_are_named_as_the_tokenizer_would() -> None:
    tables = make_tables(20)
    tokens = np.arange(12, dtype=np.int32)
    whole = chain_names(tokens.tobytes(), 4)
    admit(tables, 1, 0, 6, whole[:1])
    grown = reserve(2, rows=ints(0), computed=ints(6), wants=ints(6))
    settle(tables, Rules(), grown)
    filled = FilledBlocks(row=0, first=0, last=3, tokens=tokens[4:12].tobytes())
    settle(tables, Rules(), reserve(3, filled=(filled,), released=(0,)))
    assert [len(ids) for ids in tables.index.match(whole, 3)] == [3]


def test_blocks_behind_a_window_are_given_back_and_leave_the_table() -> None:
    tables = make_tables(40, (LayerGroup("full", 0, 1), LayerGroup("window", 6, 1)))
    admit(tables, 1, 0, 16)
    # The token at 16 sees 11..16: blocks 0 and 1 (0..7) of the window group go, block 2 (8..11) stays.
    granted = settle(tables, Rules(), reserve(2, rows=ints(0), computed=ints(16), wants=ints(1)))
    assert tables.tables[1, 0, :5].tolist()[:2] == [0, 0]
    assert all(tables.tables[1, 0, 2:5])
    assert all(tables.tables[0, 0, :5])
    dropped = [row for row in granted.blocks.tolist() if row[3] == 0]
    assert dropped == [[0, 1, 0, 0], [0, 1, 1, 0]]
    assert tables.ledger().referenced == 5 + 3


@pytest.mark.parametrize("forget", [True, False])
def test_a_rewind_frees_every_block_and_keeps_names_only_while_the_device_lives(forget: bool) -> None:
    tables = make_tables(20)
    names = chain_names(np.arange(12, dtype=np.int32).tobytes(), 4)
    admit(tables, 1, 0, 12, names)
    settle(
        tables,
        Rules(),
        reserve(2, filled=(FilledBlocks(0, 0, 3, b""),), rows=ints(0), computed=ints(12), wants=ints(1)),
    )
    tables.reset(forget=forget)
    ledger = tables.ledger()
    assert ledger.referenced == 0
    assert ledger.blank + ledger.cached == ledger.total == 20
    assert len(tables.index.match(names, 3)[0]) == (0 if forget else 3)
