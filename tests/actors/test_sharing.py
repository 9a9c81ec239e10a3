"""Prompts that begin alike and are there at the same time: what one computes, the others wait for and share.

Expected tokens come from the toy's closed form, expected counts from the prompts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from asyncpage.core.memory import Rules
from asyncpage.core.sampling import SamplingParams
from asyncpage.messages import LayerGroup, RequestId, RequestOptions
from asyncpage.testing.house import ToyHouse
from asyncpage.testing.toy_runner import toy_handshake, toy_tokens

VOCAB = 97
PROMPT = list(range(10, 42))  # eight full blocks
GROUPS = {
    "full": (LayerGroup("full", 0, 1),),
    "full and window": (LayerGroup("full", 0, 1), LayerGroup("window", 6, 1)),
    "two windows": (LayerGroup("window", 3, 1), LayerGroup("window", 9, 1)),
}
depths = pytest.mark.parametrize("depth", [1, 2])


def tokens(count: int, **more: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, **more)


def expected(prompt: Sequence[int], count: int, windows: Sequence[int] = (0,)) -> list[int]:
    return toy_tokens(prompt, count, VOCAB, windows=windows)


def prefills(house: ToyHouse) -> Counter[RequestId]:
    """Tokens that the executor has computed for each request in steps that computed its prompt, all but the last."""
    rows: dict[int, RequestId] = {}
    left: dict[RequestId, int] = {}
    counts = Counter[RequestId]()
    for step in house.steps:
        for new in step.added:
            rows[new.row] = new.request
            left[new.request] = new.prompt_tokens - new.computed
        for row, count in zip(step.rows.tolist(), step.counts.tolist(), strict=True):
            own = min(count, max(0, left[rows[row]]))
            left[rows[row]] -= own
            counts[rows[row]] += own
    return counts


def check(house: ToyHouse, prompts: dict[int, Sequence[int]], count: int) -> None:
    """Everybody has its own answer, and nothing is left behind."""
    windows = [group.window for group in house.handshake.groups]
    for request, prompt in prompts.items():
        assert house.outcomes.ends[RequestId(request)].reason == "length"
        assert house.outcomes.tokens[RequestId(request)] == expected(prompt, count, windows)
    check_idle(house)


def check_idle(house: ToyHouse) -> None:
    ledger = house.kv_manager.ledger()
    assert (ledger.referenced, ledger.blank + ledger.cached) == (0, ledger.total)
    stats = house.scheduler.stats()
    assert (stats["running"], stats["waiting"], stats["in_flight"]) == (0, 0, 0)
    assert len(house.memory.sharing) == 0


@depths
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("length", [29, 30, 31, 32])
def test_of_equal_prompts_in_one_step_the_first_is_computed_and_the_others_compute_what_is_left(
    length: int, groups: tuple[LayerGroup, ...], depth: int
) -> None:
    house = ToyHouse(toy_handshake(groups=groups, blocks=200), budget_tokens=64, depth=depth)
    prompts = dict.fromkeys((1, 2, 3), PROMPT[:length])
    for request, prompt in prompts.items():
        house.admit(request, prompt, tokens(6))
    house.run()
    # A last block that is not full cannot be found; of a full one all but one token are used, and the fourth token of
    # this one comes with the step that runs before the others are let in.
    left = {29: 1, 30: 2, 31: 1, 32: 1}[length]
    assert prefills(house) == {1: length, 2: left, 3: left}
    assert house.scheduler.stats()["parked"] == 2
    check(house, prompts, 6)


@depths
def test_a_longer_prompt_waits_only_for_what_it_shares_and_goes_on_beside_the_one_it_waited_for(depth: int) -> None:
    house = ToyHouse(toy_handshake(), long_prefill_tokens=4, depth=depth)
    prompts = {1: PROMPT, 2: [*PROMPT[:8], *range(60, 72)], 3: [*PROMPT[:20], *range(80, 84)]}
    for request, prompt in prompts.items():
        house.admit(request, prompt, tokens(4))
    house.run()
    assert house.outcomes.cached == {1: 0, 2: 8, 3: 20}
    assert prefills(house) == {1: 32, 2: 12, 3: 4}
    first_done = next(i for i, step in enumerate(house.steps) if (step.counts == 1).any())
    came = [i for i, step in enumerate(house.steps) for new in step.added if new.request == 2]
    assert came < [first_done]
    check(house, prompts, 4)


@depths
@pytest.mark.parametrize("budget", [3, 4, 10, 40])
def test_with_chunks_of_any_size_each_block_is_computed_once(budget: int, depth: int) -> None:
    house = ToyHouse(toy_handshake(), budget_tokens=budget, depth=depth)
    prompts = {1: PROMPT, 2: PROMPT[:30], 3: [*PROMPT, 60, 61, 62], 4: [*PROMPT[:17], 63]}
    for request, prompt in prompts.items():
        house.admit(request, prompt, tokens(3))
    house.run()
    # Full blocks that two prompts have in common are computed once; what lies inside one, perhaps more often.
    shared = {1: 0, 2: 28, 3: 32, 4: 16}
    for request, prompt in prompts.items():
        own = prefills(house)[RequestId(request)]
        assert own <= len(prompt) - shared[request]
        assert own == len(prompt) - house.outcomes.cached[RequestId(request)]
    check(house, prompts, 3)


@depths
def test_a_chain_of_prompts_each_waits_for_the_one_that_computes_its_next_block(depth: int) -> None:
    # The second begins like the first and the third like the second, further than like the first.
    house = ToyHouse(toy_handshake(), long_prefill_tokens=8, depth=depth)
    two = [*PROMPT[:16], *range(50, 62)]
    prompts = {1: PROMPT, 2: two, 3: [*two[:24], *range(70, 79)], 4: [*two[:24], *range(80, 83)]}
    for request, prompt in prompts.items():
        house.admit(request, prompt, tokens(3))
    house.run()
    assert house.outcomes.cached == {1: 0, 2: 16, 3: 24, 4: 24}
    assert prefills(house) == {1: 32, 2: 12, 3: 9, 4: 3}
    check(house, prompts, 3)


@depths
def test_a_request_that_comes_while_its_prompt_is_being_computed_waits_for_it_too(depth: int) -> None:
    house = ToyHouse(toy_handshake(), long_prefill_tokens=8, depth=depth)
    house.admit(1, PROMPT, tokens(3))
    house.run(until=lambda: len(house.steps) == 2)
    house.admit(2, PROMPT[:24], tokens(3))
    house.run()
    assert prefills(house) == {1: 32, 2: 1 if house.outcomes.cached[RequestId(2)] == 23 else 4}
    check(house, {1: PROMPT, 2: PROMPT[:24]}, 3)


@depths
@pytest.mark.parametrize("computed", [0, 1, 2, 3])
def test_when_the_first_is_cancelled_the_next_takes_over_and_the_others_wait_for_that_one(
    computed: int, depth: int
) -> None:
    house = ToyHouse(toy_handshake(), long_prefill_tokens=8, depth=depth)
    for request in (1, 2, 3):
        house.admit(request, PROMPT, tokens(3))
    house.run(until=lambda: len(house.steps) == computed)
    house.cancel(1)
    house.run()
    assert house.outcomes.ends[RequestId(1)].reason == "abort"
    own = prefills(house)
    assert own[RequestId(2)] == 32 - house.outcomes.cached[RequestId(2)]
    assert own[RequestId(3)] in (1, 4)
    assert own[RequestId(1)] + own[RequestId(2)] <= 32 + 8 * depth  # what was in flight is computed again
    check(house, {2: PROMPT, 3: PROMPT}, 3)


@depths
def test_when_the_one_that_is_waited_for_is_preempted_nobody_waits_for_ever(depth: int) -> None:
    # Ten blocks: the first fills up while it decodes, and takes them from the second, which two others wait for.
    house = ToyHouse(toy_handshake(blocks=11, max_model_len=40), long_prefill_tokens=4, depth=depth, rows=6)
    first = list(range(60, 68))
    house.admit(1, first, tokens(32))
    house.run(until=lambda: len(house.outcomes.tokens.get(RequestId(1), ())) >= 1)
    for request in (2, 3, 4):
        house.admit(request, PROMPT[:28], tokens(4))
    house.run()
    assert house.scheduler.stats()["preemptions"] > 0
    assert house.scheduler.stats()["parked"] >= 2
    assert house.outcomes.tokens[RequestId(1)] == expected(first, 32)
    check(house, dict.fromkeys((2, 3, 4), PROMPT[:28]), 4)


@depths
def test_when_the_one_that_is_waited_for_is_poison_the_others_compute_their_own(depth: int) -> None:
    poison = VOCAB + 1
    house = ToyHouse(toy_handshake(), long_prefill_tokens=8, depth=depth, poison=poison)
    prompts = {2: PROMPT[:20], 3: [*PROMPT[:24], 50], 4: list(range(50, 60))}
    house.admit(1, [*PROMPT[:20], poison, 9, 9, 9], tokens(4))
    for request, prompt in prompts.items():
        house.admit(request, prompt, tokens(4))
    house.run()
    failure = house.outcomes.ends[RequestId(1)].failure
    assert failure is not None
    assert failure.code == "poison"
    check(house, prompts, 4)


@depths
def test_equal_poisonous_prompts_all_end_though_each_waits_for_the_one_before(depth: int) -> None:
    poison = VOCAB + 1
    house = ToyHouse(toy_handshake(), long_prefill_tokens=8, depth=depth, poison=poison)
    for request in (1, 2, 3):
        house.admit(request, [*PROMPT[:14], poison, *PROMPT[14:]], tokens(4))
    house.admit(4, PROMPT[:12], tokens(4))
    house.run()
    codes = [failure.code for i in (1, 2, 3) if (failure := house.outcomes.ends[RequestId(i)].failure)]
    assert codes == ["poison"] * 3
    check(house, {4: PROMPT[:12]}, 4)


@depths
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_when_the_executor_is_lost_everybody_starts_again_and_they_share_again(steps: int, depth: int) -> None:
    house = ToyHouse(toy_handshake(), long_prefill_tokens=8, depth=depth)
    prompts = dict.fromkeys((1, 2, 3), PROMPT)
    for request, prompt in prompts.items():
        house.admit(request, prompt, tokens(3))
    house.run(until=lambda: len(house.steps) == steps)
    if steps == 0:
        for name in ("scheduler", "kv_manager", "scheduler"):
            house.turn(name)
    before = len(house.steps)
    house.lose_executor()
    house.run()
    del house.steps[:before]
    assert prefills(house) == {1: 32, 2: 1, 3: 1}
    check(house, prompts, 3)


@pytest.mark.parametrize("refuses", [1, 2])
def test_a_request_that_refuses_the_cache_neither_waits_nor_is_waited_for(refuses: int) -> None:
    house = ToyHouse(toy_handshake(), budget_tokens=64)
    for request in (1, 2):
        house.admit(request, PROMPT, tokens(3), RequestOptions(use_cache=request != refuses))
    house.run()
    assert len(house.steps) == 3
    assert prefills(house) == {1: 32, 2: 32}
    assert house.scheduler.stats()["parked"] == 0
    check(house, dict.fromkeys((1, 2), PROMPT), 3)


def test_a_request_that_reports_its_prompts_logprobs_does_not_wait_but_is_waited_for() -> None:
    for first, second in ((0, None), (None, 0)):
        house = ToyHouse(toy_handshake(), budget_tokens=64)
        for request, logprobs in ((1, first), (2, second)):
            house.admit(request, PROMPT, SamplingParams(max_tokens=3, prompt_logprobs=logprobs))
        house.run()
        assert prefills(house) == {1: 32, 2: 1 if second is None else 32}
        check(house, dict.fromkeys((1, 2), PROMPT), 3)


def test_other_salts_do_not_wait_for_one_another() -> None:
    house = ToyHouse(toy_handshake(), budget_tokens=64)
    for request, salt in ((1, "a"), (2, "b"), (3, "a")):
        house.admit(request, PROMPT[:20], tokens(3), RequestOptions(cache_salt=salt))
    house.run()
    assert prefills(house) == {1: 20, 2: 20, 3: 1}
    check(house, dict.fromkeys((1, 2, 3), PROMPT[:20]), 3)


def test_without_the_rule_equal_prompts_are_computed_side_by_side() -> None:
    house = ToyHouse(toy_handshake(), budget_tokens=64, rules=Rules(shares_in_flight=False))
    for request in (1, 2):
        house.admit(request, PROMPT, tokens(3))
    house.run()
    assert prefills(house) == {1: 32, 2: 32}
    check(house, dict.fromkeys((1, 2), PROMPT), 3)


@depths
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_choices_of_equal_prompts_share_one_computation(groups: tuple[LayerGroup, ...], depth: int) -> None:
    house = ToyHouse(toy_handshake(groups=groups, blocks=200), budget_tokens=40, depth=depth, rows=8)
    house.admit(1, PROMPT[:30], tokens(5, n=3))
    house.admit(4, PROMPT[:30], tokens(5, n=2))
    house.run()
    own = prefills(house)
    assert own[RequestId(1)] == 30
    assert own[RequestId(4)] == 2
    if len(groups) == 1:
        assert [own[RequestId(i)] for i in (2, 3, 5)] == [1, 1, 1]
    else:  # a window may have moved on by then: what is behind it can be found, but not forked
        assert {own[RequestId(i)] for i in (2, 3, 5)} <= {1, 2}
    check(house, dict.fromkeys(range(1, 6), PROMPT[:30]), 5)


@depths
@pytest.mark.parametrize("leaves", [1, 2, 4])
def test_choices_of_equal_prompts_end_well_when_one_of_them_leaves(leaves: int, depth: int) -> None:
    house = ToyHouse(toy_handshake(), long_prefill_tokens=8, depth=depth, rows=4)
    house.admit(1, PROMPT, tokens(5, n=3))
    house.admit(4, PROMPT, tokens(5, n=2))
    house.run(until=lambda: len(house.steps) == 2)
    house.cancel(leaves)
    house.run()
    check(house, {i: PROMPT for i in range(1, 6) if i != leaves}, 5)


def test_a_parked_request_that_leaves_is_not_missed_when_its_block_comes() -> None:
    house = ToyHouse(toy_handshake(), long_prefill_tokens=8)
    for request in (1, 2, 3):
        house.admit(request, PROMPT, tokens(3))
    house.run(until=lambda: len(house.steps) == 2)
    assert house.scheduler.stats()["parked"] == 2
    house.cancel(2)
    house.run()
    assert house.outcomes.ends[RequestId(2)].reason == "abort"
    check(house, {1: PROMPT, 3: PROMPT}, 3)


def test_a_deadline_ends_a_parked_request() -> None:
    house = ToyHouse(toy_handshake(), long_prefill_tokens=8)
    house.admit(1, PROMPT, tokens(3))
    house.admit(2, PROMPT, tokens(3), RequestOptions(deadline=house.clock.now() + 1))
    house.run(until=lambda: len(house.steps) == 2)
    house.clock.advance(2)
    house.run()
    failure = house.outcomes.ends[RequestId(2)].failure
    assert failure is not None
    assert failure.status == 504
    check(house, {1: PROMPT}, 3)
