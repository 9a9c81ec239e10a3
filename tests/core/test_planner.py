"""What is asked of memory and told to the executor, step by step, with grants made by hand."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from asyncpage.core.admission import SchedulerSettings
from asyncpage.core.planner import StepPlanner
from asyncpage.core.policy import Fcfs
from asyncpage.core.sampling import SamplingParams
from asyncpage.core.sequence import Sequence, sequences
from asyncpage.messages import (
    EMPTY_BLOCKS,
    EMPTY_TRIPLES,
    Admission,
    Admit,
    Granted,
    Int32,
    Released,
    RequestId,
    RequestOptions,
    Reserve,
    Step,
    StepDone,
)


def ints(*numbers: int) -> Int32:
    return np.array(numbers, dtype=np.int32)


def make(*, rows: int = 4, depth: int = 1, long_prefill_tokens: int = 0) -> StepPlanner:
    settings = SchedulerSettings(
        rows=rows,
        block_size=4,
        groups=1,
        capacity_blocks=100,
        max_tokens=60,
        budget_tokens=32,
        long_prefill_tokens=long_prefill_tokens,
        depth=depth,
        max_queue=10,
        vocab_size=97,
        eos_ids=(),
        seed=0,
    )
    return StepPlanner(settings, Fcfs())


def add(planner: StepPlanner, request: int, prompt: int = 6) -> Sequence:
    tokens = array("i", range(prompt)).tobytes()
    admit = Admit(RequestId(request), tokens, (), SamplingParams(max_tokens=20), RequestOptions())
    made = sequences(admit, arrival=request, max_tokens=60, block_size=4, eos_ids=(), seed=0)
    planner.roster.add(made)
    return made[0]


def reserve(planner: StepPlanner, *, may_leave: bool = True) -> Reserve:
    asked = planner.next(may_leave=may_leave)
    assert asked is not None
    assert planner.is_settling
    return asked


def grant(
    planner: StepPlanner,
    asked: Reserve,
    counts: dict[int, int] | None = None,
    *,
    admitted: tuple[tuple[int, int, int, int], ...] = (),
    victims: tuple[int, ...] = (),
    free_blocks: int = 0,
    **more: tuple[RequestId, ...],
) -> Step | None:
    """`counts` by row; `admitted`: request, row, computed and count of each."""
    counts = (counts or {}) | {row: count for _, row, _, count in admitted}
    granted = Granted(
        number=asked.number,
        rows=ints(*counts),
        counts=ints(*counts.values()),
        blocks=EMPTY_BLOCKS,
        copies=EMPTY_TRIPLES,
        victims=victims,
        admitted=tuple(Admission(RequestId(r), row, computed, n, ()) for r, row, computed, n in admitted),
        free_blocks=free_blocks,
        **more,  # type: ignore[arg-type]
    )
    step = planner.apply(granted)
    assert not planner.is_settling
    return step


def start(planner: StepPlanner, *requests: int, prompt: int = 6) -> Step:
    """All these get a row, the first row the first, and compute their prompts."""
    for request in requests:
        add(planner, request, prompt)
    asked = reserve(planner)
    admitted = tuple((request, row, 0, prompt) for row, request in zip(asked.free_rows, requests, strict=True))
    step = grant(planner, asked, admitted=admitted)
    assert step is not None
    return step


def done(planner: StepPlanner, step: Step, tokens: dict[int, int]) -> None:
    result = StepDone(step.number, step.epoch, ints(*tokens), ints(*[1] * len(tokens)), ints(*tokens.values()))
    assert planner.settle(result) is not None


# --- nothing to do ----------------------------------------------------------------------------------------------------


def test_nothing_is_asked_when_there_is_nothing_to_do() -> None:
    planner = make()
    assert planner.next(may_leave=True) is None
    step = start(planner, 1)
    assert planner.next(may_leave=True) is None  # one step deep, and it is out
    done(planner, step, {0: 50})
    assert planner.next(may_leave=False) is None
    assert planner.next(may_leave=True) is not None


def test_a_settlement_that_grants_nothing_sends_no_step_and_waits_for_nothing() -> None:
    planner = make()
    add(planner, 1)
    asked = reserve(planner)
    assert grant(planner, asked) is None
    assert len(planner.running.in_flight) == 0
    assert reserve(planner).number == asked.number + 1


def test_as_many_steps_are_asked_for_as_may_be_in_flight() -> None:
    planner = make(depth=2)
    first = start(planner, 1)
    second = grant(planner, reserve(planner), {0: 1})
    assert second is not None
    assert planner.next(may_leave=True) is None
    done(planner, first, {0: 50})
    asked = reserve(planner)
    assert (asked.number, asked.returned) == (3, 1)


def test_what_a_step_in_flight_held_back_is_asked_for_once_it_is_back_though_nobody_is_left() -> None:
    planner = make(depth=2)
    sequence = add(planner, 1)
    asked = reserve(planner)
    step = grant(planner, asked, admitted=((1, 0, 0, 6),))
    assert step is not None
    planner.leave(sequence, 26)
    released = reserve(planner)
    assert released.released == (Released(0, b""),)
    assert released.returned == 0
    assert grant(planner, released) is None
    assert planner.next(may_leave=True) is None  # step 1 is out
    done(planner, step, {})
    last = reserve(planner)
    assert (last.returned, last.released, last.order.tolist()) == (last.number - 1, (), [])
    assert grant(planner, last) is None
    assert planner.next(may_leave=True) is None


# --- rows that were emptied -------------------------------------------------------------------------------------------


def test_an_emptied_row_is_told_once_to_memory_and_once_to_the_executor() -> None:
    planner = make()
    step = start(planner, 1, 2)
    done(planner, step, {0: 50, 1: 51})
    first = planner.roster.find(RequestId(1))
    assert first is not None
    planner.leave(first, 26)
    asked = reserve(planner)
    tail = array("i", [4, 5]).tobytes()  # the first block was full; the token of this step is not computed
    assert asked.released == (Released(0, tail),)
    assert asked.order.tolist() == [1]
    step2 = grant(planner, asked, {1: 1})
    assert step2 is not None
    assert step2.removed.tolist() == [0]
    done(planner, step2, {1: 52})
    later = reserve(planner)
    assert later.released == ()
    step3 = grant(planner, later, {1: 1})
    assert step3 is not None
    assert step3.removed.tolist() == []


def test_the_executor_hears_of_an_emptied_row_with_the_next_step_that_really_leaves() -> None:
    planner = make()
    step = start(planner, 1, 2)
    done(planner, step, {0: 50, 1: 51})
    first = planner.roster.find(RequestId(1))
    assert first is not None
    planner.leave(first, 26)
    assert grant(planner, reserve(planner)) is None  # the other one has to wait
    asked = reserve(planner)
    assert asked.released == ()
    step2 = grant(planner, asked, {1: 1})
    assert step2 is not None
    assert step2.removed.tolist() == [0]


def test_rows_are_given_back_while_the_executor_is_not_ready_and_nothing_else_is_asked() -> None:
    planner = make()
    step = start(planner, 1, 2)
    done(planner, step, {0: 50, 1: 51})
    add(planner, 3)
    first = planner.roster.find(RequestId(1))
    assert first is not None
    planner.leave(first, 26)
    asked = reserve(planner, may_leave=False)
    assert [released.row for released in asked.released] == [0]
    assert (asked.candidates, int(asked.wants.sum())) == ((), 0)
    assert grant(planner, asked) is None
    assert planner.next(may_leave=False) is None
    again = reserve(planner)
    assert (again.released, [c.request for c in again.candidates], again.wants.tolist()) == ((), [3], [0, 1, 0, 0])


def test_rows_are_given_back_while_as_many_steps_as_may_be_are_in_flight() -> None:
    planner = make()
    step = start(planner, 1, 2)
    first = planner.roster.find(RequestId(1))
    assert first is not None
    planner.leave(first, 26)
    asked = reserve(planner)
    assert ([r.row for r in asked.released], asked.returned, int(asked.wants.sum())) == ([0], 0, 0)
    assert grant(planner, asked) is None
    done(planner, step, {1: 51})


def test_a_victims_row_is_memorys_own_news_and_told_to_the_executor_only() -> None:
    planner = make()
    step = start(planner, 1, 2)
    done(planner, step, {0: 50, 1: 51})
    step2 = grant(planner, reserve(planner), {0: 1}, victims=(1,))
    assert step2 is not None
    assert step2.removed.tolist() == [1]
    assert [sequence.request for sequence in planner.sent_back] == [2]
    assert planner.counts["preemptions"] == 1
    done(planner, step2, {0: 52})
    asked = reserve(planner)
    assert asked.released == ()
    assert [(c.request, c.known) for c in asked.candidates] == [(2, 7)]


def test_a_row_that_is_emptied_and_given_away_in_one_step_is_removed_and_added() -> None:
    planner = make(rows=1)
    step = start(planner, 1)
    add(planner, 2)
    done(planner, step, {0: 50})
    first = planner.roster.find(RequestId(1))
    assert first is not None
    planner.leave(first, 26)
    asked = reserve(planner)
    assert (asked.free_rows, [c.request for c in asked.candidates]) == ((0,), [2])
    step2 = grant(planner, asked, admitted=((2, 0, 4, 2),))
    assert step2 is not None
    assert (step2.removed.tolist(), [new.request for new in step2.added]) == ([0], [2])


def test_after_a_rewind_nothing_of_before_is_told_and_everybody_waits() -> None:
    planner = make(depth=2)
    step = start(planner, 1, 2)
    grant(planner, reserve(planner), {0: 1, 1: 1})
    first = planner.roster.find(RequestId(1))
    assert first is not None
    planner.leave(first, 26)
    planner.rewind()
    assert planner.epoch == step.epoch + 1
    asked = reserve(planner)
    assert (asked.released, asked.order.tolist(), len(asked.filled)) == ((), [], 0)
    assert asked.returned == asked.number - 1
    assert [c.request for c in asked.candidates] == [2]
    step2 = grant(planner, asked, admitted=((2, 0, 0, 6),))
    assert step2 is not None
    assert (step2.removed.tolist(), step2.epoch) == ([], planner.epoch)
    late = StepDone(step.number, step.epoch, ints(0, 1), ints(1, 1), ints(7, 8))
    assert planner.settle(late) is None


# --- what a step brings -----------------------------------------------------------------------------------------------


def test_blocks_that_two_steps_filled_are_told_together_with_the_next_settlement_and_not_again() -> None:
    planner = make(depth=2)
    first = start(planner, 1, 2, prompt=7)
    second = grant(planner, reserve(planner), {0: 1, 1: 1})
    assert second is not None
    done(planner, first, {0: 50, 1: 51})
    done(planner, second, {0: 52, 1: 53})
    asked = reserve(planner)
    assert asked.filled.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert asked.filled_tokens.tolist() == [[0, 1, 2, 3], [4, 5, 6, 50], [0, 1, 2, 3], [4, 5, 6, 51]]
    grant(planner, asked, {0: 1, 1: 1})
    assert len(reserve(planner).filled) == 0


def test_started_are_those_that_get_a_row_for_the_first_time_and_recomputed_tokens_are_counted() -> None:
    planner = make()
    step = start(planner, 1)
    assert [(started.request, started.cached_tokens) for started in planner.started] == [(1, 0)]
    planner.started.clear()
    done(planner, step, {0: 50})
    grant(planner, reserve(planner), victims=(0,))
    asked = reserve(planner)
    again = grant(planner, asked, admitted=((1, 0, 4, 3),))
    assert again is not None
    assert planner.started == []
    assert planner.counts == {
        "preemptions": 1,
        "recomputed_tokens": 2,  # six were computed, four are taken over
        "prompt_tokens": 6,
        "cached_tokens": 0,
        "parked": 0,
        "draft_tokens": 0,
        "accepted_draft_tokens": 0,
    }
    assert np.frombuffer(again.added[0].tokens, dtype=np.int32).tolist() == [0, 1, 2, 3, 4, 5, 50]


def test_parked_requests_are_not_offered_until_they_are_woken() -> None:
    planner = make()
    step = start(planner, 1)
    add(planner, 2)
    add(planner, 3)
    done(planner, step, {0: 50})
    asked = reserve(planner)
    assert [c.request for c in asked.candidates] == [2, 3]
    step = grant(planner, asked, {0: 1}, parked=(RequestId(2),))
    assert step is not None
    done(planner, step, {0: 51})
    asked = reserve(planner)
    assert [c.request for c in asked.candidates] == [3]
    grant(planner, asked, parked=(RequestId(3),), woken=(RequestId(2),))
    asked = reserve(planner)
    assert [c.request for c in asked.candidates] == [2]
    assert planner.counts["parked"] == 2


@pytest.mark.parametrize(("free_blocks", "victims"), [(0, [1, 0]), (100, [])])
def test_victims_are_named_only_where_blocks_could_run_out(free_blocks: int, victims: list[int]) -> None:
    planner = make()
    step = start(planner, 1, 2)
    done(planner, step, {0: 50, 1: 51})
    step = grant(planner, reserve(planner), {0: 1, 1: 1}, free_blocks=free_blocks)
    assert step is not None
    done(planner, step, {0: 52, 1: 53})
    assert reserve(planner).victims.tolist() == victims


@pytest.mark.parametrize(("prompt", "granted"), [(5, 1), (17, 1), (17, 8), (30, 13)])
def test_without_victims_there_are_always_enough_blocks_for_what_is_wanted(prompt: int, granted: int) -> None:
    # The fewest free blocks for which no victims are named are still enough for every row's want.
    for free_blocks in range(40):
        planner = make()
        for request in (1, 2):
            add(planner, request, prompt)
        admitted = tuple((request, row, 0, granted) for row, request in enumerate((1, 2)))
        step = grant(planner, reserve(planner), admitted=admitted, free_blocks=free_blocks)
        assert step is not None
        done(planner, step, {})
        asked = reserve(planner)
        if not len(asked.victims):
            needed = 2 * (-(-prompt // 4) - -(-granted // 4))
            assert free_blocks >= needed
            return
    raise AssertionError("victims are named however many blocks are free")


def test_the_share_of_a_long_prefill_clips_what_a_row_wants() -> None:
    planner = make(long_prefill_tokens=5)
    add(planner, 1, prompt=17)
    step = grant(planner, reserve(planner), admitted=((1, 0, 0, 5),))
    assert step is not None
    done(planner, step, {})
    assert reserve(planner).wants.tolist() == [5, 0, 0, 0]


def test_what_is_asked_does_not_change_when_rows_go_on() -> None:
    planner = make(depth=2)
    start(planner, 1)
    asked = reserve(planner)
    before = asked.computed.tolist(), asked.wants.tolist(), asked.order.tolist()
    grant(planner, asked, {0: 1})
    assert (asked.computed.tolist(), asked.wants.tolist(), asked.order.tolist()) == before
