"""The two passes over memory, with counts made by hand."""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from asyncpage.core.block_names import chain_names, root_key
from asyncpage.core.block_tables import BlockTables
from asyncpage.core.memory import Memory, Rules, SameBatch
from asyncpage.core.settlement import settle
from asyncpage.messages import Admission, Candidate, Granted, Int32, LayerGroup, Prefix, Released, RequestId, Reserve

FULL = (LayerGroup("full", 0, 1),)
ROWS = 8
ROOT = root_key(4)


def make(
    blocks: int, groups: tuple[LayerGroup, ...] = FULL, rules: Rules | None = None, *, size: int = 4, most: int = 400
) -> Memory:
    tables = BlockTables(blocks=blocks + 1, block_size=size, groups=groups, rows=ROWS, max_tokens=most)
    return Memory(tables, rules or Rules())


def ints(*numbers: int) -> Int32:
    return np.array(numbers, dtype=np.int32)


def column(values: Mapping[int, int]) -> Int32:
    whole = np.zeros(ROWS, dtype=np.int32)
    for row, value in values.items():
        whole[row] = value
    return whole


def prefix(tokens: Iterable[int], size: int = 4) -> Prefix:
    data = array("i", tokens).tobytes()
    return Prefix(root_key(size), data, chain_names(data, size))


def waiting(request: int, tokens: Iterable[int] | int, size: int = 4, **more: bool | int) -> Candidate:
    """A request for these tokens; a number stands for so many that nobody else has."""
    if isinstance(tokens, int):
        tokens = range(1000 * request, 1000 * request + tokens)
    whole = list(tokens)
    return Candidate(RequestId(request), len(whole), prefix(whole, size), **more)  # type: ignore[arg-type]


def reserve(
    number: int,
    *candidates: Candidate,
    computed: Mapping[int, int] | None = None,
    wants: Mapping[int, int] | None = None,
    budget: int = 100,
    returned: int | None = None,
    released: tuple[Released, ...] = (),
    filled: Mapping[tuple[int, int], Iterable[int]] | None = None,
    free_rows: tuple[int, ...] = (4, 5, 6, 7),
) -> Reserve:
    """`computed`: of the rows that live, in policy order. `filled`: tokens by row and index of the block."""
    order = ints(*(computed or {}))
    blocks = {place: list(tokens) for place, tokens in (filled or {}).items()}
    size = len(next(iter(blocks.values()), (0,)))
    return Reserve(
        number=number,
        returned=number - 1 if returned is None else returned,
        order=order,
        computed=column(computed or {}),
        wants=column(wants or {}),
        tokens=sum((wants or {}).values()),
        victims=order[::-1],
        candidates=candidates,
        budget_tokens=budget,
        free_rows=free_rows,
        released=released,
        filled=np.array(list(blocks), dtype=np.int32).reshape(-1, 2),
        filled_tokens=np.array(list(blocks.values()), dtype=np.int32).reshape(-1, size),
    )


def settled(memory: Memory, request: Reserve) -> Granted:
    """As the KV manager does it."""
    granted, has_unnamed = settle(memory, request)
    if has_unnamed:
        memory.publish(request)
    return granted


def admit(memory: Memory, number: int, row: int, candidate: Candidate, **more: object) -> Admission:
    granted = settled(memory, reserve(number, candidate, free_rows=(row,), **more))  # type: ignore[arg-type]
    assert [admission.row for admission in granted.admitted] == [row]
    return granted.admitted[0]


def blocks_of(admission: Admission, group: int = 0) -> list[int]:
    ids: list[int] = np.frombuffer(admission.tables[group], dtype=np.int32).tolist()
    return ids


# --- the running pass -------------------------------------------------------------------------------------------------


def test_the_budget_goes_to_running_rows_in_order_and_clips_the_last() -> None:
    memory = make(60)
    for row in range(3):
        admit(memory, row + 1, row, waiting(row, 10))
    computed = {0: 10, 1: 10, 2: 10}
    granted = settled(memory, reserve(4, computed=computed, wants={0: 1, 1: 30, 2: 30}, budget=40))
    assert granted.rows.tolist() == [0, 1, 2]
    assert granted.counts.tolist() == [1, 30, 9]


def test_where_blocks_are_short_drafts_are_given_up_before_anybody_is_preempted() -> None:
    memory = make(7)
    for row in range(2):
        admit(memory, row + 1, row, waiting(row, 10))
    # Both have room for two tokens more in their third block, and one block is left.
    computed = {0: 10, 1: 10}

    def decoding(number: int, drafts: dict[int, int]) -> Granted:
        wants = {row: 1 + drafts.get(row, 0) for row in computed}
        request = reserve(number, computed=computed, wants=wants)
        return settled(memory, replace(request, drafts=column(drafts) if drafts else ints()))

    granted = decoding(3, {0: 3, 1: 3})
    assert (granted.counts.tolist(), granted.victims, len(granted.blocks)) == ([1, 1], (), 0)
    granted = decoding(4, {0: 1, 1: 3})
    assert (granted.counts.tolist(), granted.victims, len(granted.blocks)) == ([2, 4], (), 1)


def test_rows_behind_the_one_that_spent_the_budget_get_nothing_whatever_their_numbers() -> None:
    memory = make(60)
    for row in range(3):
        admit(memory, row + 1, row, waiting(row, 10))
    computed = {2: 10, 0: 10, 1: 10}  # policy order
    granted = settled(memory, reserve(4, computed=computed, wants={0: 30, 1: 30, 2: 30}, budget=40))
    assert dict(zip(granted.rows.tolist(), granted.counts.tolist(), strict=True)) == {2: 30, 0: 10}


def test_the_last_in_order_is_preempted_first_and_the_waiting_pass_is_skipped_then() -> None:
    memory = make(6)
    for row in range(3):
        admit(memory, row + 1, row, waiting(row, 8))
    request = reserve(4, waiting(9, 1), computed={0: 8, 1: 8, 2: 8}, wants={0: 1, 1: 1, 2: 1})
    granted = settled(memory, request)
    assert granted.victims == (2,)
    assert granted.rows.tolist() == [0, 1]
    assert granted.counts.tolist() == [1, 1]
    assert granted.blocks[:, 0].tolist() == [0, 1]
    assert granted.admitted == ()


def test_a_victim_that_was_served_in_the_same_pass_gives_back_its_tokens_and_its_table_entries() -> None:
    memory = make(7)
    for row in range(3):
        admit(memory, row + 1, row, waiting(row, 8))
    request = reserve(4, computed={0: 8, 1: 8, 2: 8}, wants={0: 1, 1: 5, 2: 1})  # 1 + 2 + 1 blocks, 1 is free
    granted = settled(memory, replace(request, victims=ints(0, 2, 1)))
    assert granted.victims == (0,)  # two blocks and the one it had just been given
    assert granted.rows.tolist() == [1, 2]
    assert granted.blocks[:, 0].tolist() == [1, 1, 2]
    assert memory.tables.ledger().referenced == 4 + 3


def test_a_row_that_is_alone_and_too_long_preempts_itself() -> None:
    memory = make(3)
    admit(memory, 1, 0, waiting(1, 12))
    granted = settled(memory, reserve(2, computed={0: 12}, wants={0: 1}))
    assert granted.victims == (0,)
    assert granted.rows.tolist() == []
    assert granted.blocks.tolist() == []
    assert memory.tables.ledger().referenced == 0


def test_a_row_waits_for_blocks_that_a_step_in_flight_still_names() -> None:
    memory = make(4)
    admit(memory, 1, 0, waiting(1, 8))
    admit(memory, 2, 1, waiting(2, 8))
    over = reserve(3, computed={0: 8}, wants={0: 1}, returned=0, released=(Released(1),))
    one = settled(memory, over)
    assert one.rows.tolist() == []
    assert one.victims == ()
    two = settled(memory, reserve(4, computed={0: 8}, wants={0: 1}, returned=2))
    assert two.rows.tolist() == [0]


def test_steady_decoding_is_granted_in_the_very_same_arrays_and_changes_no_table() -> None:
    memory = make(60)
    for row in range(2):
        admit(memory, row + 1, row, waiting(row, 9))
    steps = [
        settled(memory, reserve(3 + i, computed={0: 9 + i, 1: 9 + i}, wants={0: 1, 1: 1})) for i in range(3)
    ]  # up to 12 tokens, three blocks
    assert all(step.rows is steps[0].rows and step.counts is steps[0].counts for step in steps)
    assert [len(step.blocks) for step in steps] == [0, 0, 0]
    later = settled(memory, reserve(6, computed={0: 12, 1: 12}, wants={1: 1}))
    assert later.rows is not steps[0].rows
    assert (later.rows.tolist(), later.counts.tolist()) == ([1], [1])
    assert later.blocks[:, :3].tolist() == [[1, 0, 3]]


def test_the_same_batch_is_told_by_its_counts_in_all_rows() -> None:
    batch = SameBatch()
    first = batch.of(ints(0, 1, 0, 5))
    assert [part.tolist() for part in first] == [[1, 3], [1, 5]]
    again = batch.of(ints(0, 1, 0, 5))
    assert all(a is b for a, b in zip(first, again, strict=True))
    moved = batch.of(ints(1, 0, 0, 5))
    assert [part.tolist() for part in moved] == [[0, 3], [1, 5]]
    assert [part.tolist() for part in batch.of(ints(0, 0, 0, 0))] == [[], []]


def test_rows_that_only_decode_get_the_blocks_of_several_steps_at_once_while_there_are_plenty() -> None:
    memory = make(6 + 8 * 3)
    for row, tokens in enumerate((5, 6, 8)):
        admit(memory, row + 1, row, waiting(row, tokens))
    computed = {0: 5, 1: 6, 2: 8}  # of two blocks of four each: three, two and no tokens fit
    granted = settled(memory, replace(reserve(4, computed=computed, wants={0: 1, 1: 1, 2: 1}), equal_steps=9))
    assert granted.steps == 4  # a block's worth
    assert [(row, index) for row, _, index, _ in granted.blocks.tolist()] == [(0, 2), (1, 2), (2, 2)]
    assert granted.counts.tolist() == [1, 1, 1]
    memory = make(200)
    for row, tokens in enumerate((5, 6, 8)):
        admit(memory, row + 1, row, waiting(row, tokens))
    granted = settled(memory, replace(reserve(4, computed=computed, wants={0: 1, 1: 1, 2: 1}), equal_steps=9))
    assert granted.steps == 9  # up to tokens 14, 15 and 17
    places = [(row, index) for row, _, index, _ in granted.blocks.tolist()]
    assert places == [(0, 2), (0, 3), (1, 2), (1, 3), (2, 2), (2, 3), (2, 4)]
    after = {0: 14, 1: 15, 2: 17}
    granted = settled(memory, replace(reserve(13, computed=after, wants={0: 1, 1: 1, 2: 1}), equal_steps=2))
    assert granted.steps == 2
    assert [(row, index) for row, _, index, _ in granted.blocks.tolist()] == [(1, 4)]
    granted = settled(memory, replace(reserve(15, computed=after, wants={0: 1, 1: 1, 2: 1}), equal_steps=900))
    assert granted.steps == 16  # four blocks' worth is the most


def test_a_block_is_given_ahead_of_its_need_only_when_eight_are_free_for_each() -> None:
    for blocks, steps in ((4 + 15, 1), (4 + 16, 4), (4 + 32, 8)):
        memory = make(blocks)
        for row in range(2):
            admit(memory, row + 1, row, waiting(row, 5))
        wanted = reserve(3, computed={0: 5, 1: 5}, wants={0: 1, 1: 1})
        granted = settled(memory, replace(wanted, equal_steps=9))
        assert granted.steps == steps
        assert len(granted.blocks) == {1: 0, 4: 2, 8: 4}[steps]


def test_no_step_is_granted_ahead_while_a_row_computes_a_prompt_or_somebody_waits_for_a_running_row() -> None:
    memory = make(60)
    admit(memory, 1, 0, waiting(0, 5))
    granted = settled(memory, replace(reserve(2, computed={0: 3}, wants={0: 2}), equal_steps=9))
    assert granted.steps == 1
    memory = make(60)
    admit(memory, 1, 0, waiting(0, range(9)))
    granted = settled(memory, reserve(2, waiting(1, range(9)), computed={0: 9}, wants={0: 1}))
    assert granted.parked == (1,)
    granted = settled(memory, replace(reserve(3, computed={0: 10}, wants={0: 1}), equal_steps=9))
    assert granted.steps == 1


# --- the waiting pass -------------------------------------------------------------------------------------------------


def test_candidates_share_what_the_running_pass_left() -> None:
    memory = make(60)
    admit(memory, 1, 0, waiting(9, 10))
    request = reserve(2, waiting(1, 20), waiting(2, 20), waiting(3, 20), computed={0: 10}, wants={0: 1}, budget=32)
    granted = settled(memory, request)
    assert granted.counts.tolist() == [1, 20, 11]
    assert [admission.row for admission in granted.admitted] == [4, 5]


def test_the_watermark_keeps_blocks_free_except_in_an_empty_engine() -> None:
    rules = Rules(watermark_blocks=3)
    memory = make(10, rules=rules)
    admit(memory, 1, 0, waiting(1, 40))
    memory = make(10, rules=rules)
    admit(memory, 1, 0, waiting(1, 20))  # five blocks, five left
    late = reserve(2, waiting(2, 12), computed={0: 20}, free_rows=(1,))
    assert settled(memory, late).admitted == ()
    small = reserve(3, waiting(2, 8), computed={0: 20}, free_rows=(1,))
    assert len(settled(memory, small).admitted) == 1


def test_the_watermark_holds_from_the_second_of_those_let_in_together() -> None:
    memory = make(10, rules=Rules(watermark_blocks=3))
    granted = settled(memory, reserve(1, waiting(1, 20), waiting(2, 12)))
    assert [admission.request for admission in granted.admitted] == [1]


def test_nobody_overtakes_a_candidate_that_does_not_fit() -> None:
    memory = make(10)
    admit(memory, 1, 0, waiting(9, 24))
    granted = settled(memory, reserve(2, waiting(1, 30), waiting(2, 4), computed={0: 24}))
    assert granted.admitted == ()


@pytest.mark.parametrize(("second", "is_in"), [(16, True), (17, False)])
def test_blocks_that_prompts_let_in_before_will_still_take_are_not_given_to_another(second: int, is_in: bool) -> None:
    memory = make(10)
    first = settled(memory, reserve(1, waiting(1, 24), budget=8, free_rows=(0,)))
    assert [admission.count for admission in first.admitted] == [8]  # two of its six blocks; eight are free
    granted = settled(memory, reserve(2, waiting(2, second), computed={0: 8}, wants={0: 4}, budget=100, free_rows=(1,)))
    # The first has three of its six now, seven are free, of which it will take three.
    assert bool(granted.admitted) is is_in
    settled(memory, reserve(3, released=(Released(0),)))
    granted = settled(memory, reserve(4, waiting(3, 17), free_rows=(2,)))
    assert bool(granted.admitted)  # nothing is owed to a row that is empty


@pytest.mark.parametrize(("whole_prompt", "is_in"), [(True, False), (False, True)])
def test_blocks_for_the_whole_prompt_must_be_there_though_only_its_first_chunk_is_computed(
    whole_prompt: bool, is_in: bool
) -> None:
    memory = make(10, rules=Rules(whole_prompt=whole_prompt))
    admit(memory, 1, 0, waiting(9, 24))  # four blocks are left
    granted = settled(memory, reserve(2, waiting(1, 20), computed={0: 24}, budget=8))
    assert [(a.count, len(a.tables[0]) // 4) for a in granted.admitted] == ([(8, 2)] if is_in else [])


def test_without_chunks_a_prompt_that_exceeds_the_budget_ends_the_pass() -> None:
    memory = make(60, rules=Rules(chunked_prefill=False))
    granted = settled(memory, reserve(1, waiting(1, 8), waiting(2, 9), waiting(3, 2), budget=16))
    assert [(a.request, a.count) for a in granted.admitted] == [(1, 8)]


# --- published facts --------------------------------------------------------------------------------------------------


def test_a_published_pool_of_ten_blocks_of_sixteen_behaves_as_counted_by_hand() -> None:
    # 55 tokens miss and take 4 blocks; one that shares 48 hits 48; after both a stranger's 160 take all ten.
    memory = make(10, size=16)
    first = [i % 90 for i in range(55)]
    a = admit(memory, 1, 0, waiting(1, first, 16))
    assert (a.computed, a.count, len(blocks_of(a))) == (0, 55, 4)
    filled = {(0, i): first[16 * i : 16 * i + 16] for i in range(3)}
    second = [*first[:48], *range(100, 107)]
    b = admit(memory, 2, 1, waiting(2, second, 16), computed={0: 55}, wants={0: 1}, filled=filled)
    assert (b.computed, b.count) == (48, 7)
    assert blocks_of(b)[:3] == blocks_of(a)[:3]
    assert memory.tables.ledger().referenced == 5
    settled(memory, reserve(3, released=(Released(0), Released(1))))
    ledger = memory.tables.ledger()
    assert (ledger.blank, ledger.cached, ledger.referenced) == (7, 3, 0)
    stranger = admit(memory, 4, 2, waiting(3, range(200, 360), 16), budget=160)
    assert (stranger.computed, stranger.count) == (0, 160)
    assert sorted(blocks_of(stranger)) == list(range(1, 11))
    settled(memory, reserve(5, released=(Released(2),)))
    again = admit(memory, 6, 0, waiting(4, first, 16))
    assert (again.computed, again.count) == (0, 55)


def test_a_published_long_prefill_share_makes_three_prompts_progress_together() -> None:
    # Budget 1,024 with a share of 400 and three prompts of 800: 400/400/224, 400/400/224, then 1/1/352.
    memory = make(200, rules=Rules(long_prefill_tokens=400), size=16, most=1000)
    granted = settled(memory, reserve(1, *(waiting(i, 800, 16) for i in (1, 2, 3)), budget=1024, free_rows=(0, 1, 2)))
    assert granted.counts.tolist() == [400, 400, 224]
    two = reserve(2, computed={0: 400, 1: 400, 2: 224}, wants={0: 400, 1: 400, 2: 400}, budget=1024)
    assert settled(memory, two).counts.tolist() == [400, 400, 224]
    three = reserve(3, computed={0: 800, 1: 800, 2: 448}, wants={0: 1, 1: 1, 2: 352}, budget=1024)
    assert settled(memory, three).counts.tolist() == [1, 1, 352]


# --- what is cached ---------------------------------------------------------------------------------------------------


def fill(tokens: list[int], row: int = 0, size: int = 4) -> dict[tuple[int, int], list[int]]:
    """All full blocks of a row's tokens."""
    return {(row, i): tokens[size * i : size * (i + 1)] for i in range(len(tokens) // size)}


def test_a_full_hit_shares_the_full_blocks_copies_the_rest_and_leaves_one_token_to_compute() -> None:
    memory = make(20)
    prompt = list(range(12))
    first = admit(memory, 1, 0, waiting(1, prompt))
    granted = settled(memory, reserve(2, waiting(2, prompt), filled=fill(prompt), free_rows=(1,)))
    (admission,) = granted.admitted
    assert (admission.computed, admission.count) == (11, 1)
    own, shared = blocks_of(first), blocks_of(admission)
    assert shared[:2] == own[:2]
    assert shared[2] != own[2]
    assert granted.copies.tolist() == [[own[2], shared[2], 3]]


def test_the_tail_of_a_finished_request_is_copied_from_and_stays_until_that_step_is_back() -> None:
    memory = make(20)
    first = list(range(10))
    admit(memory, 1, 0, waiting(1, first))
    donor = int(memory.tables.tables[0, 0, 2])
    tail = array("i", first[8:]).tobytes()
    over = reserve(2, waiting(2, [*first, 50, 51]), filled=fill(first), released=(Released(0, tail),), free_rows=(1,))
    granted = settled(memory, over)
    (admission,) = granted.admitted
    assert (admission.computed, admission.count) == (10, 2)
    assert granted.copies.tolist() == [[donor, blocks_of(admission)[2], 2]]
    settled(memory, reserve(3, computed={1: 12}, wants={1: 1}, returned=1))
    assert memory.tables.pool.references(donor) == 1  # the step that copies is in flight
    settled(memory, reserve(4, computed={1: 13}, wants={1: 1}, returned=2))
    assert memory.tables.pool.references(donor) == 0


def test_a_request_that_fits_only_without_its_donor_computes_those_tokens() -> None:
    memory = make(3)
    first = list(range(11))
    admit(memory, 1, 0, waiting(1, first))
    tail = array("i", first[8:]).tobytes()
    ended = settled(memory, reserve(2, filled=fill(first), released=(Released(0, tail),)))
    assert ended.free_blocks == 3
    granted = settled(memory, reserve(3, waiting(2, [*first, 50]), free_rows=(1,)))
    (admission,) = granted.admitted
    assert (admission.computed, admission.count) == (8, 4)
    assert granted.copies.tolist() == []
    assert memory.tables.ledger().referenced == 3


def test_a_donor_in_every_group_is_copied_block_by_block() -> None:
    memory = make(20, (LayerGroup("full", 0, 1), LayerGroup("window", 3, 1)))
    first = list(range(7))
    admit(memory, 1, 0, waiting(1, first))
    donors = memory.tables.tables[:, 0, 1].tolist()
    tail = array("i", first[4:]).tobytes()
    settled(memory, reserve(2, filled=fill(first), released=(Released(0, tail),)))
    granted = settled(memory, reserve(3, waiting(2, [*first[:6], 50]), free_rows=(1,)))
    (admission,) = granted.admitted
    assert (admission.computed, admission.count) == (6, 1)
    begun = [blocks_of(admission, group)[1] for group in (0, 1)]
    assert granted.copies.tolist() == [[donors[0], begun[0], 2], [donors[1], begun[1], 2]]


def test_blocks_that_fill_while_a_request_runs_are_named_as_the_tokenizer_would() -> None:
    memory = make(20)
    tokens = list(range(12))
    admit(memory, 1, 0, waiting(1, tokens[:6]))
    settled(memory, reserve(2, computed={0: 6}, wants={0: 6}))
    settled(memory, reserve(3, filled=fill(tokens), released=(Released(0),)))
    assert [len(ids) for ids in memory.tables.index.match(prefix(tokens), 12).blocks] == [3]


def test_a_steady_step_is_answered_before_its_blocks_are_named_and_a_busy_one_after() -> None:
    memory = make(20)
    tokens = list(range(9))
    admit(memory, 1, 0, waiting(1, tokens))
    steady = reserve(2, computed={0: 9}, wants={0: 1}, filled={(0, 0): tokens[:4]})
    _, has_unnamed = settle(memory, steady)
    assert has_unnamed
    assert memory.tables.index.match(prefix(tokens), 9).blocks == ((),)
    memory.publish(steady)
    assert len(memory.tables.index.match(prefix(tokens), 9).blocks[0]) == 1
    busy = reserve(3, waiting(2, tokens), computed={0: 10}, wants={0: 1}, filled={(0, 1): tokens[4:8]})
    granted, has_unnamed = settle(memory, busy)
    assert not has_unnamed
    assert [a.computed for a in granted.admitted] == [8]


def test_a_request_that_may_not_read_the_cache_computes_everything_and_feeds_what_is_new() -> None:
    memory = make(20)
    prompt = list(range(9))
    own = admit(memory, 1, 0, waiting(1, prompt))
    filled = {(0, 0): prompt[:4]}
    second = waiting(2, prompt, read_cache=False)
    other = admit(memory, 2, 1, second, computed={0: 9}, wants={0: 1}, filled=filled)
    assert (other.computed, other.count) == (0, 9)
    settled(memory, reserve(3, filled={(1, 0): prompt[:4], (1, 1): prompt[4:8]}, released=(Released(1), Released(0))))
    found = memory.tables.index.match(prefix(prompt), 9)
    assert found.blocks == ((blocks_of(own)[0], blocks_of(other)[1]),)


def test_a_request_that_refuses_the_cache_leaves_nothing_behind() -> None:
    memory = make(20)
    prompt = list(range(9))
    admit(memory, 1, 0, waiting(1, prompt, read_cache=False, feed_cache=False))
    settled(memory, reserve(2, released=(Released(0, array("i", prompt[8:]).tobytes()),)))
    ledger = memory.tables.ledger()
    assert (ledger.blank, ledger.cached) == (20, 0)


# --- forks, windows, rewinds ------------------------------------------------------------------------------------------


def test_a_fork_shares_its_siblings_blocks_and_copies_the_one_it_will_write() -> None:
    memory = make(20)
    prompt = list(range(10))
    leader = admit(memory, 1, 0, waiting(1, prompt))
    fork = waiting(2, prompt, fork_row=0)
    granted = settled(memory, reserve(2, fork, computed={0: 10}, wants={0: 1}, free_rows=(1,)))
    (admission,) = granted.admitted
    assert (admission.computed, admission.count) == (9, 1)
    assert blocks_of(admission)[:2] == blocks_of(leader)[:2]
    assert granted.copies.tolist() == [[blocks_of(leader)[2], blocks_of(admission)[2], 1]]
    assert memory.tables.ledger().referenced == 4


def test_a_fork_whose_first_token_begins_a_block_copies_nothing() -> None:
    memory = make(20)
    prompt = list(range(9))
    leader = admit(memory, 1, 0, waiting(1, prompt))
    granted = settled(memory, reserve(2, waiting(2, prompt, fork_row=0), computed={0: 9}, free_rows=(1,)))
    (admission,) = granted.admitted
    assert (admission.computed, admission.count) == (8, 1)
    assert blocks_of(admission)[:2] == blocks_of(leader)[:2]
    assert blocks_of(admission)[2] != blocks_of(leader)[2]
    assert granted.copies.tolist() == []


def test_blocks_that_a_fork_fills_are_found_behind_the_leaders() -> None:
    memory = make(20)
    prompt = list(range(10))
    leader = admit(memory, 1, 0, waiting(1, prompt))
    fork = admit(memory, 2, 1, waiting(2, prompt, fork_row=0), filled=fill(prompt), computed={0: 10}, wants={0: 1})
    grown = [*prompt, 60, 61]
    settled(memory, reserve(3, filled={(1, 2): grown[8:]}, released=(Released(1), Released(0))))
    found = memory.tables.index.match(prefix(grown), 12)
    assert found.blocks == ((*blocks_of(leader)[:2], blocks_of(fork)[2]),)


WITH_WINDOW = (LayerGroup("full", 0, 1), LayerGroup("window", 6, 1))


@pytest.mark.parametrize("feed_cache", [True, False])
def test_blocks_behind_a_window_are_given_back_and_leave_the_table(feed_cache: bool) -> None:
    memory = make(40, WITH_WINDOW)
    prompt = list(range(16))
    admit(memory, 1, 0, waiting(1, prompt, feed_cache=feed_cache))
    if feed_cache:
        memory.publish(reserve(2, filled=fill(prompt)))
    # The token at 16 sees 11..16: blocks 0 and 1 (0..7) of the window group go, block 2 (8..11) stays.
    granted = settled(memory, reserve(2, computed={0: 16}, wants={0: 1}))
    tables = memory.tables.tables
    assert tables[1, 0, :5].tolist()[:2] == [0, 0]
    assert all(tables[1, 0, 2:5])
    assert all(tables[0, 0, :5])
    dropped = [row for row in granted.blocks.tolist() if row[3] == 0]
    assert dropped == [[0, 1, 0, 0], [0, 1, 1, 0]]
    assert memory.tables.ledger().referenced == 5 + 3
    assert memory.tables.ledger().cached == (2 if feed_cache else 0)


@pytest.mark.parametrize("is_back", [True, False])
def test_a_block_behind_the_window_stays_until_it_is_published_so_that_others_can_begin_there(is_back: bool) -> None:
    memory = make(40, WITH_WINDOW)
    prompt = list(range(16))
    first = admit(memory, 1, 0, waiting(1, prompt))
    step = reserve(2, computed={0: 16}, wants={0: 1}, filled=fill(prompt) if is_back else {}, returned=int(is_back))
    settled(memory, step)
    settled(memory, reserve(3, computed={0: 17}, wants={0: 1}, filled={} if is_back else fill(prompt), returned=1))
    shorter = admit(memory, 4, 1, waiting(2, [*prompt[:8], 50, 51]), computed={0: 18}, wants={0: 1})
    assert shorter.computed == 8
    # The token at 8 sees 3..8, so it looks at block 0 too.
    assert [blocks_of(shorter, group)[:2] for group in (0, 1)] == [blocks_of(first, group)[:2] for group in (0, 1)]


def test_a_shortage_takes_what_is_behind_a_window_before_it_takes_a_victim() -> None:
    memory = make(12, WITH_WINDOW)
    prompt, other = list(range(16)), list(range(50, 54))
    admit(memory, 1, 0, waiting(1, prompt))
    admit(memory, 2, 1, waiting(2, other))
    assert memory.tables.pool.free == 2
    full = {**fill(prompt), **fill(other, 1)}
    granted = settled(memory, reserve(3, computed={0: 16, 1: 4}, wants={0: 1, 1: 1}, filled=full))
    assert granted.victims == ()
    assert granted.rows.tolist() == [0, 1]


@pytest.mark.parametrize("forget", [True, False])
def test_a_rewind_frees_every_block_and_keeps_names_only_while_the_device_lives(forget: bool) -> None:
    memory = make(20)
    prompt = list(range(12))
    admit(memory, 1, 0, waiting(1, prompt))
    settled(memory, reserve(2, filled=fill(prompt), computed={0: 12}, wants={0: 1}))
    memory.rewind(forget=forget)
    ledger = memory.tables.ledger()
    assert ledger.referenced == 0
    assert ledger.blank + ledger.cached == ledger.total == 20
    assert len(memory.tables.index.match(prefix(prompt), 12).blocks[0]) == (0 if forget else 3)


# --- parking ----------------------------------------------------------------------------------------------------------


def test_a_candidate_whose_next_block_is_promised_is_parked_and_does_not_stop_those_behind_it() -> None:
    memory = make(20)
    prompt = list(range(12))
    granted = settled(memory, reserve(1, waiting(1, prompt), waiting(2, prompt), waiting(3, 8)))
    assert [a.request for a in granted.admitted] == [1, 3]
    assert granted.parked == (2,)
    assert granted.woken == ()
    then = settled(memory, reserve(2, computed={4: 12, 5: 8}, wants={4: 1, 5: 1}, filled=fill(prompt, 4)))
    later = settled(memory, reserve(3, computed={4: 13, 5: 9}, wants={4: 1, 5: 1}))
    assert then.woken + later.woken == (2,)
    (admission,) = settled(memory, reserve(4, waiting(2, prompt), free_rows=(6,))).admitted
    assert (admission.computed, admission.count) == (11, 1)


@pytest.mark.parametrize("how", ["released", "preempted", "switched off", "refuses the cache", "leader feeds nothing"])
def test_nobody_is_left_waiting_for_a_promise_that_is_not_kept(how: str) -> None:
    memory = make(6, rules=Rules(shares_in_flight=how != "switched off"))
    prompt = list(range(9))
    leader = waiting(1, prompt, feed_cache=how != "leader feeds nothing")
    follower = waiting(2, prompt, read_cache=how != "refuses the cache")
    granted = settled(memory, reserve(1, leader, follower, budget=4, free_rows=(0, 1)))
    if how in ("released", "preempted"):
        assert granted.parked == ()  # the budget was spent on the first, so nobody looked at the second
        granted = settled(memory, reserve(2, follower, computed={0: 4}, wants={0: 1}, free_rows=(1,)))
        assert granted.parked == (2,)
        if how == "released":
            granted = settled(memory, reserve(3, released=(Released(0),)))
        else:
            granted = settled(memory, reserve(3, computed={0: 5}, wants={0: 21}))
            assert granted.victims == (0,)
        assert granted.woken == (2,)
        assert len(memory.sharing) == 0
    granted = settled(memory, reserve(4, follower, free_rows=(1,)))
    assert [a.request for a in granted.admitted] == [2]


@pytest.mark.parametrize("how", ["reset", "collision"])
def test_nobody_waits_for_a_row_whose_blocks_will_not_be_found(how: str) -> None:
    memory = make(20)
    prompt = list(range(9))
    if how == "collision":  # the name of its first block is held by other tokens
        (block,) = memory.tables.pool.take(1)
        index = memory.tables.index
        index.publish(index.begin(ROOT), prefix(prompt).names[0], array("i", [9, 9, 9, 9]).tobytes(), [block])
    granted = settled(memory, reserve(1, waiting(1, prompt), waiting(2, prompt), free_rows=(0, 1)))
    assert granted.parked == (2,)
    if how == "reset":
        memory.forget_prefixes()
    filled = {(0, 0): prompt[:4]} if how == "collision" else {}
    granted = settled(memory, reserve(2, computed={0: 9}, wants={0: 1}, filled=filled))
    assert granted.woken == (2,)
    again = admit(memory, 3, 1, waiting(2, prompt), computed={0: 10}, wants={0: 1})
    assert (again.computed, again.count) == (0, 9)


def test_who_waits_is_woken_in_the_answer_to_the_settlement_that_brings_the_block() -> None:
    memory = make(20)
    prompt = list(range(9))
    settled(memory, reserve(1, waiting(1, prompt), waiting(2, prompt), free_rows=(0, 1)))
    filled = {(0, 0): prompt[:4], (0, 1): prompt[4:8]}
    assert settled(memory, reserve(2, computed={0: 9}, wants={0: 1}, filled=filled)).woken == (2,)


def test_a_candidate_that_does_not_fit_changes_nothing() -> None:
    memory = make(8)
    prompt = list(range(11))
    admit(memory, 1, 0, waiting(1, prompt))
    tail = array("i", prompt[8:]).tobytes()
    settled(memory, reserve(2, filled=fill(prompt), released=(Released(0, tail),)))  # three blocks are cached
    admit(memory, 3, 1, waiting(2, 16))  # one is blank
    pool = memory.tables.pool

    def everything() -> tuple[object, ...]:
        ids = range(1, 9)
        held = memory.tables.tables.tolist(), memory.tables.held.tolist()
        return memory.tables.ledger(), [(pool.references(b), memory.tables.index.holds(b)) for b in ids], held

    before = everything()
    granted = settled(memory, reserve(4, waiting(3, [*prompt, *range(60, 66)]), computed={1: 16}))  # five blocks
    assert granted.admitted == ()
    assert everything() == before
    assert pool.take(1) == [8]  # the blank one still goes first, then the cached ones from the tail
    assert [pool.take(1), pool.take(1)] == [[3], [2]]
