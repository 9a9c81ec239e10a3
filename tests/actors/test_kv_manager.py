"""The KV manager: an answer for each question, and counts that are those of the blocks themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpage.actors.kv_manager import KvManager
from asyncpage.core.block_names import chain_names, root_key
from asyncpage.core.block_tables import BlockTables
from asyncpage.core.memory import Memory
from asyncpage.errors import UnknownMessage
from asyncpage.messages import (
    EMPTY,
    Candidate,
    Drain,
    Granted,
    LayerGroup,
    Prefix,
    Released,
    RequestId,
    Reserve,
    Rewind,
)
from asyncpage.testing.house import Inbox


def make() -> tuple[KvManager, Inbox]:
    scheduler = Inbox()
    tables = BlockTables(blocks=31, block_size=4, groups=(LayerGroup("full", 0, 1),), rows=4, max_tokens=64)
    return KvManager(Memory(tables), scheduler), scheduler


def candidate(request: int, known: int) -> Candidate:
    prompt = np.arange(known, dtype=np.int32).tobytes()
    return Candidate(RequestId(request), known, Prefix(root_key(4), prompt, chain_names(prompt, 4)))


def reserve(
    number: int,
    *candidates: Candidate,
    row: int = 0,
    order: tuple[int, ...] = (),
    released: tuple[int, ...] = (),
    filled: int = 0,
) -> Reserve:
    """`filled`: so many blocks of `row` are full of the tokens 0, 1, 2 and so on."""
    nothing = np.zeros(4, dtype=np.int32)
    return Reserve(
        number=number,
        returned=number - 1,
        order=np.array(order, dtype=np.int32),
        computed=nothing,
        wants=nothing,
        tokens=0,
        victims=EMPTY,
        candidates=candidates,
        budget_tokens=64,
        free_rows=(row,),
        released=tuple(map(Released, released)),
        filled=np.array([(row, i) for i in range(filled)], dtype=np.int32).reshape(-1, 2),
        filled_tokens=np.arange(4 * filled, dtype=np.int32).reshape(-1, 4),
    )


def test_each_reserve_is_answered_by_one_granted_of_its_number() -> None:
    kv_manager, scheduler = make()
    kv_manager.receive(reserve(1, candidate(7, 10)))
    kv_manager.receive(reserve(2))
    first, second = scheduler.messages
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert (first.number, second.number) == (1, 2)
    assert [admission.request for admission in first.admitted] == [7]
    assert first.free_blocks == 27


def test_blocks_that_filled_are_named_in_a_steady_step_too() -> None:
    kv_manager, scheduler = make()
    kv_manager.receive(reserve(1, candidate(7, 9)))
    kv_manager.receive(reserve(2, order=(0,), filled=2))
    kv_manager.receive(reserve(3, candidate(8, 9), row=1, order=(0,)))
    granted = scheduler.messages[-1]
    assert isinstance(granted, Granted)
    assert [admission.computed for admission in granted.admitted] == [8]


@pytest.mark.parametrize("forget", [True, False])
def test_a_rewind_leaves_no_block_referenced_and_answers_nothing(forget: bool) -> None:
    kv_manager, scheduler = make()
    kv_manager.receive(reserve(1, candidate(7, 10)))
    kv_manager.receive(Rewind(forget=forget))
    assert kv_manager.ledger().referenced == 0
    assert len(scheduler.messages) == 1


def test_what_nobody_sends_it_is_an_error() -> None:
    with pytest.raises(UnknownMessage, match="KvManager has no arm for Drain"):
        make()[0].receive(Drain())


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), max_size=30))
def test_its_gauges_are_the_blocks_counted_one_by_one(events: list[tuple[int, int]]) -> None:
    kv_manager, _ = make()
    living: dict[int, int] = {}
    for number, (row, known) in enumerate(events, 1):
        if row in living:
            kv_manager.receive(reserve(number, row=row, released=(row,), filled=living.pop(row) // 4))
        else:
            before = kv_manager.ledger().referenced
            kv_manager.receive(reserve(number, candidate(number, known), row=row))
            if kv_manager.ledger().referenced > before:
                living[row] = known
        ledger = kv_manager.ledger()
        counted = {
            "blocks_total": ledger.total,
            "blocks_blank": ledger.blank,
            "blocks_cached": ledger.cached,
            "blocks_referenced": ledger.referenced,
        }
        assert counted.items() <= kv_manager.stats().items()
        assert ledger.blank + ledger.cached + ledger.referenced == ledger.total == 30
