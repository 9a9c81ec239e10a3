"""Scheduling policies in the whole control plane: who is let in next, told from the steps that leave."""

from __future__ import annotations

import pytest

from asyncpage.core.sampling import SamplingParams
from asyncpage.messages import RequestId, RequestOptions
from asyncpage.testing.house import ToyHouse
from asyncpage.testing.toy_runner import toy_handshake

ONE = SamplingParams(max_tokens=1)
FEW = SamplingParams(max_tokens=6)  # what a prompt has stored is known before its row is free: news take some steps


def let_in(house: ToyHouse) -> list[int]:
    return [int(new.request) for step in house.steps for new in step.added]


def prompt_of(family: int, length: int) -> list[int]:
    return [(family * 31 + i) % 90 for i in range(length)]


@pytest.mark.parametrize("depth", [1, 2])
def test_longest_prefix_goes_by_what_is_cached_when_a_row_is_free_not_when_the_request_came(depth: int) -> None:
    house = ToyHouse(toy_handshake(), rows=1, policy="longest-prefix", depth=depth)
    house.admit(1, prompt_of(1, 9), FEW)  # nothing is cached: by age
    house.admit(2, prompt_of(2, 21), FEW)
    house.admit(3, prompt_of(3, 9), FEW)
    house.admit(4, [*prompt_of(1, 8), 90], FEW)  # two blocks like the first
    house.admit(5, [*prompt_of(2, 20), 91], FEW)  # five blocks like the second
    house.admit(6, [*prompt_of(1, 4), 92], FEW)  # one block like the first
    house.run()
    assert let_in(house) == [1, 4, 6, 2, 5, 3]


def test_longest_prefix_hears_of_what_is_cached_though_no_step_would_have_to_be_settled() -> None:
    house = ToyHouse(toy_handshake(blocks=1000), rows=1, policy="longest-prefix")
    house.admit(1, prompt_of(1, 20), ONE)
    house.run()
    house.admit(2, prompt_of(2, 3), SamplingParams(max_tokens=60))
    house.run(until=lambda: len(house.steps) == 5)
    house.admit(3, prompt_of(3, 20), ONE)
    house.admit(4, [*prompt_of(1, 20), 91], ONE)
    house.run(until=lambda: len(house.steps) == 8)
    house.cancel(2)
    house.run()
    assert let_in(house) == [1, 2, 4, 3]


def test_longest_prefix_forgets_what_was_evicted() -> None:
    # Ten usable blocks: the stranger takes nine and the blocks of the first prompt with them.
    house = ToyHouse(toy_handshake(blocks=11, max_model_len=40), rows=1, policy="longest-prefix", budget_tokens=40)
    house.admit(1, prompt_of(1, 20), ONE)
    house.run()
    house.admit(2, prompt_of(2, 39), ONE)
    house.run(until=lambda: len(house.steps) == 2)
    house.admit(3, prompt_of(3, 5), ONE)
    house.admit(4, [*prompt_of(1, 16), 91], ONE)
    house.run()
    assert let_in(house) == [1, 2, 3, 4]


@pytest.mark.parametrize("bound", [1, 6])
def test_the_oldest_is_let_in_after_the_bound_however_many_better_ones_come(bound: int) -> None:
    house = ToyHouse(toy_handshake(), rows=1, policy="priority", fairness_bound=bound)
    house.admit(1, range(5), ONE, RequestOptions(priority=9))
    for request in range(2, 30):
        house.admit(request, range(5), ONE, RequestOptions(priority=-request))
    house.run()
    order = let_in(house)
    assert order[: bound + 1] == list(range(29, 28 - bound, -1))
    assert order[bound + 1 :] == list(range(1, 29 - bound))  # the others came as early: by age now


def test_without_a_bound_priorities_are_kept_to_the_letter() -> None:
    house = ToyHouse(toy_handshake(), rows=1, policy="priority")
    levels = {request: (request * 7) % 11 for request in range(30)}
    for request, level in levels.items():
        house.admit(request, range(5), ONE, RequestOptions(priority=level))
    house.run()
    assert let_in(house) == sorted(levels, key=lambda request: (levels[request], request))


def test_a_request_that_refuses_the_cache_waits_behind_those_that_hit_it() -> None:
    house = ToyHouse(toy_handshake(), rows=1, policy="longest-prefix")
    house.admit(1, prompt_of(1, 9), FEW)
    house.admit(2, prompt_of(1, 9), FEW, RequestOptions(use_cache=False))
    house.admit(3, prompt_of(1, 9), FEW)
    house.run()
    assert let_in(house) == [1, 3, 2]
    assert house.outcomes.cached[RequestId(2)] == 0
