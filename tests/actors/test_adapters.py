"""Requests of several adapters in one house: slots, shared blocks, preemption and losses, with the toy executor.

Expected tokens come from the toy's closed form, in which an adapter changes every digest.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.prefix_tree import PrefixTree
from asyncpage.core.sampling import SamplingParams
from asyncpage.messages import Adapter, RequestId, RequestOptions
from asyncpage.testing.house import ToyHouse
from asyncpage.testing.toy_runner import toy_handshake, toy_tokens

VOCAB = 97
PROMPT = [(place * 7) % 90 for place in range(14)]
WITHOUT_END = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)


def options(adapter: str, **more: object) -> RequestOptions:
    return RequestOptions(lora=Adapter(adapter, f"/adapters/{adapter}") if adapter else None, **more)  # type: ignore[arg-type]


def expected(prompt: list[int], count: int, adapter: str) -> list[int]:
    return toy_tokens(prompt, count, VOCAB, adapter=adapter)


def most_at_once(house: ToyHouse) -> int:
    """The most adapters that rows of one step ran with."""
    slots: dict[int, int] = {}
    most = 0
    for step in house.steps:
        for row in step.removed.tolist():
            slots.pop(row, None)
        slots |= {new.row: new.adapter_slot for new in step.added}
        most = max(most, len({slots[row] for row in step.rows.tolist() if row in slots} - {0}))
    return most


@pytest.mark.parametrize("index", [PrefixChain, PrefixTree])
def test_adapters_and_the_model_itself_never_share_blocks_and_each_finds_its_own(index: type[PrefixIndex]) -> None:
    house = ToyHouse(toy_handshake(), adapter_slots=2, index=index)
    for turn in range(2):
        for number, adapter in enumerate(("", "a", "b", "c")):
            request = house.admit(turn * 100 + number + 1, PROMPT, WITHOUT_END, options(adapter))
            house.run()
            assert house.outcomes.tokens[request] == expected(PROMPT, 6, adapter)
            assert (house.outcomes.cached[request] > 0) == (turn == 1)


def test_two_choices_of_a_prompt_run_with_its_adapter() -> None:
    house = ToyHouse(toy_handshake(), adapter_slots=1)
    sampling = SamplingParams(max_tokens=6, n=2, seed=1, ignore_eos=True)
    house.admit(1, PROMPT, sampling, options("a"))
    house.run()
    assert [house.outcomes.tokens[RequestId(one)] for one in (1, 2)] == [expected(PROMPT, 6, "a")] * 2


def test_requests_of_more_adapters_than_slots_all_get_their_turn() -> None:
    house = ToyHouse(toy_handshake(blocks=200), adapter_slots=2, rows=8)
    adapters = ["a", "b", "c", "d", "", "a", "c"]
    for number, adapter in enumerate(adapters, 1):
        house.admit(number, PROMPT, WITHOUT_END, options(adapter))
    house.run()
    assert most_at_once(house) == 2
    for number, adapter in enumerate(adapters, 1):
        assert house.outcomes.tokens[RequestId(number)] == expected(PROMPT, 6, adapter)


def test_whoever_waits_for_a_slot_holds_up_nobody_that_needs_none() -> None:
    house = ToyHouse(toy_handshake(blocks=200), adapter_slots=1, rows=8)
    long = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    house.admit(1, PROMPT, long, options("a"))
    house.admit(2, PROMPT, WITHOUT_END, options("b"))
    house.admit(3, PROMPT, WITHOUT_END, options(""))
    house.run(until=lambda: RequestId(3) in house.outcomes.ends)
    assert RequestId(1) not in house.outcomes.ends
    assert RequestId(2) not in house.outcomes.ends
    house.run()
    assert house.outcomes.tokens[RequestId(2)] == expected(PROMPT, 6, "b")


def test_an_adapter_is_refused_by_a_scheduler_without_slots() -> None:
    house = ToyHouse(toy_handshake())
    house.admit(1, PROMPT, WITHOUT_END, options("a"))
    house.run()
    assert house.outcomes.refused[RequestId(1)].failure.code == "adapters_off"


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b", "c", "d"]),
        st.integers(1, 14),  # of the prompt
        st.integers(1, 12),  # of the answer
        st.integers(-1, 1),  # priority
        st.integers(0, 5),  # turns of the house before it comes
    ),
    min_size=2,
    max_size=16,
)


@settings(max_examples=60, deadline=None)
@given(
    REQUESTS,
    st.integers(1, 3),
    st.sampled_from([1, 2]),
    st.sampled_from(["fcfs", "priority", "longest-prefix"]),
    st.lists(st.integers(1, 40), max_size=2),
)
def test_every_answer_is_its_adapters_whatever_is_preempted_lost_and_waited_for(
    requests: list[tuple[str, int, int, int, int]], slots: int, depth: int, policy: str, losses: list[int]
) -> None:
    house = ToyHouse(toy_handshake(blocks=16), rows=6, adapter_slots=slots, depth=depth, policy=policy)
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if turns in losses:
            house.lose_executor()
        for name in house.boxes:
            house.turn(name)

    for number, (adapter, length, count, priority, wait) in enumerate(requests, 1):
        sampling = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
        house.admit(number, PROMPT[:length], sampling, options(adapter, priority=priority))
        for _ in range(wait):
            turn()
    for _ in range(50):
        turn()
    house.run()
    assert most_at_once(house) <= slots
    for number, (adapter, length, count, _, _) in enumerate(requests, 1):
        assert house.outcomes.tokens[RequestId(number)] == expected(PROMPT[:length], count, adapter)
    stats = house.scheduler.stats()
    assert (stats["running"], stats["waiting"], stats["in_flight"]) == (0, 0, 0)
