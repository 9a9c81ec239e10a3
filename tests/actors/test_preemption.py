"""Progress when blocks are short, and aborts in every state, with the toy executor that computes with its blocks.

Expected tokens come from the toy's closed form over the tokens alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core.memory import Rules
from asyncpage.core.policy import VICTIM_POLICIES
from asyncpage.core.policy_registry import BUILT_IN
from asyncpage.core.sampling import SamplingParams
from asyncpage.messages import Cancel, RequestId, RequestOptions, Step, StepDone
from asyncpage.testing.house import ToyHouse
from asyncpage.testing.toy_runner import toy_handshake, toy_tokens

VOCAB = 97
BLOCK = 4
MOST_TOKENS = 40  # of one request: ten blocks


def expected(prompt: Sequence[int], count: int) -> list[int]:
    return toy_tokens(prompt, count, VOCAB)


def check_idle(house: ToyHouse) -> None:
    """Baseline when idle: no row holds a block, nobody waits, nothing runs."""
    ledger = house.kv_manager.ledger()
    assert ledger.blank + ledger.cached == ledger.total
    stats = house.scheduler.stats()
    assert (stats["running"], stats["waiting"], stats["in_flight"]) == (0, 0, 0)


def preemptions(house: ToyHouse) -> Counter[RequestId]:
    """How often each request was let in again."""
    added = Counter(new.request for step in house.steps for new in step.added)
    return Counter({request: times - 1 for request, times in added.items()})


# --- progress ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """One request: its prompt begins like those of its `family`."""

    family: int
    shared: int
    own: int
    count: int
    priority: int
    turns: int  # of the house, before it comes

    def prompt(self, request: int) -> list[int]:
        shared = [(self.family * 31 + i) % 90 for i in range(self.shared)]
        return [*shared, *((request * 7 + i) % 90 for i in range(self.own))]


LOADS = st.lists(
    st.builds(
        Load,
        family=st.integers(0, 2),
        shared=st.integers(0, 14),
        own=st.integers(1, 6),
        count=st.integers(1, 20),
        priority=st.integers(-1, 1),
        turns=st.integers(0, 6),
    ),
    min_size=2,
    max_size=24,
)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("victims", VICTIM_POLICIES)
@pytest.mark.parametrize("policy", BUILT_IN)
@settings(max_examples=6, deadline=None)
@given(
    loads=LOADS,
    blocks=st.integers(MOST_TOKENS // BLOCK, 3 * MOST_TOKENS // BLOCK),
    budget=st.integers(8, 40),
    fairness_bound=st.sampled_from([0, 3]),
    watermark=st.integers(0, 1),
)
def test_everybody_finishes_with_its_own_tokens_after_few_preemptions_however_small_the_pool(
    policy: str,
    victims: str,
    depth: int,
    loads: list[Load],
    blocks: int,
    budget: int,
    fairness_bound: int,
    watermark: int,
) -> None:
    house = ToyHouse(
        toy_handshake(blocks=1 + blocks, block_size=BLOCK, max_model_len=MOST_TOKENS),
        rows=8,
        budget_tokens=budget,
        depth=depth,
        policy=policy,
        victims=victims,
        fairness_bound=fairness_bound,
        rules=Rules(watermark_blocks=watermark),
    )
    for request, load in enumerate(loads):
        sampling = SamplingParams(max_tokens=load.count)
        house.admit(request, load.prompt(request), sampling, RequestOptions(priority=load.priority))
        for _ in range(load.turns):
            for name in house.boxes:
                house.turn(name)
    house.run(most_turns=5_000)
    for request, load in enumerate(loads):
        assert house.outcomes.ends[RequestId(request)].reason == "length"
        assert house.outcomes.tokens[RequestId(request)] == expected(load.prompt(request), load.count)
    assert max(preemptions(house).values()) <= 20
    assert house.scheduler.stats()["preemptions"] == preemptions(house).total()
    check_idle(house)


def test_a_victim_that_had_the_whole_budget_leaves_it_to_the_others() -> None:
    # The second goes before the first, is let in last, and takes all of the budget until it is preempted itself.
    house = ToyHouse(
        toy_handshake(blocks=17, max_model_len=64), budget_tokens=4, rules=Rules(whole_prompt=False), policy="priority"
    )
    house.admit(1, range(17), SamplingParams(max_tokens=30), RequestOptions(priority=1))
    for _ in range(31):
        for box in house.boxes:
            house.turn(box)
    house.admit(2, range(50, 86), SamplingParams(max_tokens=1), RequestOptions(priority=0))
    house.run()
    assert set(house.outcomes.ends) == {1, 2}


@pytest.mark.parametrize("depth", [1, 2])
@settings(max_examples=20, deadline=None)
@given(loads=LOADS, blocks=st.integers(MOST_TOKENS // BLOCK, 20))
def test_whoever_was_admitted_first_of_those_that_run_is_never_preempted(
    depth: int, loads: list[Load], blocks: int
) -> None:
    house = ToyHouse(
        toy_handshake(blocks=1 + blocks, block_size=BLOCK, max_model_len=MOST_TOKENS), depth=depth, budget_tokens=40
    )
    for request, load in enumerate(loads):
        house.admit(request, load.prompt(request), SamplingParams(max_tokens=load.count))
    house.run(most_turns=5_000)
    assert preemptions(house)[RequestId(0)] == 0  # it came first
    left = Counter(new.request for step in house.steps for new in step.added)
    rows: dict[int, RequestId] = {}  # in the order of their admissions
    for step in house.steps:
        gone = step.removed.tolist()
        first = next(iter(rows), None)
        assert first is None or first not in gone or not left[rows[first]]
        for row in gone:
            del rows[row]
        for new in step.added:
            left[new.request] -= 1
            rows[new.row] = new.request


# --- aborts -----------------------------------------------------------------------------------------------------------


def rows_of(house: ToyHouse) -> dict[int, RequestId]:
    """Who has which row, as the executor knows it."""
    rows: dict[int, RequestId] = {}
    for step in house.steps:
        for row in step.removed.tolist():
            del rows[row]
        rows |= {new.row: new.request for new in step.added}
    return rows


@dataclass(frozen=True)
class Scene:
    """A house run up to the moment at which `target` is in the state that the test is named for."""

    house: ToyHouse
    target: RequestId
    prompts: dict[RequestId, list[int]]
    count: int

    def abort(self) -> None:
        """The target's client leaves; everybody else must not notice, and nothing may be left behind."""
        ends_before = dict(self.house.outcomes.ends)
        self.house.cancel(self.target)
        self.house.run(most_turns=5_000)
        outcomes = self.house.outcomes
        for request, prompt in self.prompts.items():
            own = expected(prompt, self.count)
            if request == self.target and request not in ends_before:
                assert outcomes.ends[request].reason == "abort"
                assert outcomes.tokens[request] == own[: len(outcomes.tokens[request])]
                assert len(outcomes.tokens[request]) < self.count
            else:
                assert outcomes.ends[request].reason == "length"
                assert outcomes.tokens[request] == own
        check_idle(self.house)


def scene(house: ToyHouse, target: int, count: int, prompts: dict[int, list[int]], choices: int = 1) -> Scene:
    named: dict[RequestId, list[int]] = {}
    for request, prompt in prompts.items():
        n = choices if request == 1 else 1
        house.admit(request, prompt, SamplingParams(max_tokens=count, n=n))
        named |= {RequestId(request + choice): prompt for choice in range(n)}
    return Scene(house, RequestId(target), named, count)


def prompt_of(request: int, length: int) -> list[int]:
    return [(request * 7 + i) % 90 for i in range(length)]


DEPTHS = pytest.mark.parametrize("depth", [1, 2])


@DEPTHS
@pytest.mark.parametrize("policy", BUILT_IN)
def test_an_abort_while_queued(policy: str, depth: int) -> None:
    house = ToyHouse(toy_handshake(), rows=1, depth=depth, policy=policy)
    staged = scene(house, 2, 9, {1: prompt_of(1, 6), 2: prompt_of(2, 6), 3: prompt_of(3, 6)})
    house.run(until=lambda: len(house.outcomes.tokens.get(RequestId(1), ())) >= 2)
    staged.abort()
    assert RequestId(2) not in {new.request for step in house.steps for new in step.added}


@DEPTHS
def test_an_abort_before_anything_was_done_for_it(depth: int) -> None:
    house = ToyHouse(toy_handshake(), depth=depth)
    scene(house, 1, 9, {1: prompt_of(1, 6), 2: prompt_of(2, 6)}).abort()


@DEPTHS
def test_an_abort_in_the_middle_of_its_prefill(depth: int) -> None:
    house = ToyHouse(toy_handshake(max_model_len=64), budget_tokens=8, depth=depth)
    staged = scene(house, 2, 5, {1: prompt_of(1, 6), 2: prompt_of(2, 40)})
    house.run(until=lambda: len(house.steps) == 4)
    computed = sum(
        int(count)
        for step in house.steps
        for row, count in zip(step.rows.tolist(), step.counts.tolist(), strict=True)
        if rows_of(house)[row] == 2
    )
    assert 0 < computed < 40
    staged.abort()


@DEPTHS
@pytest.mark.parametrize("victims", VICTIM_POLICIES)
def test_an_abort_while_preempted(victims: str, depth: int) -> None:
    def preempted() -> set[RequestId]:
        started = {new.request for step in house.steps for new in step.added}
        return started - set(rows_of(house).values()) - house.outcomes.ends.keys()

    house = ToyHouse(toy_handshake(blocks=11, max_model_len=40), victims=victims, depth=depth)
    staged = scene(house, 0, 20, {request: prompt_of(request, 6) for request in range(1, 6)})
    house.run(until=lambda: bool(preempted()))
    Scene(house, max(preempted()), staged.prompts, 20).abort()


@DEPTHS
def test_an_abort_while_its_step_is_in_flight(depth: int) -> None:
    house = ToyHouse(toy_handshake(), depth=depth)
    staged = scene(house, 1, 12, {1: prompt_of(1, 6), 2: prompt_of(2, 6)})
    house.run(until=lambda: len(house.outcomes.tokens.get(RequestId(1), ())) >= 2)
    while house.turn("scheduler") | house.turn("kv_manager"):
        pass
    in_flight = [step for step in house.boxes["executor"].messages if isinstance(step, Step)]
    assert len(in_flight) == depth
    staged.abort()


@DEPTHS
def test_an_abort_while_the_settlement_is_out(depth: int) -> None:
    house = ToyHouse(toy_handshake(), depth=depth)
    staged = scene(house, 1, 12, {1: prompt_of(1, 6), 2: prompt_of(2, 6)})
    house.run(until=lambda: len(house.outcomes.tokens.get(RequestId(1), ())) >= 2)
    while not house.boxes["kv_manager"].messages:
        house.turn("scheduler") or house.turn("executor")
    house.cancel(1)
    house.turn("scheduler")
    staged.abort()


@DEPTHS
@pytest.mark.parametrize("comes_first", [Cancel, StepDone])
def test_an_abort_in_the_batch_of_messages_that_brings_its_last_token(comes_first: type, depth: int) -> None:
    house = ToyHouse(toy_handshake(), depth=depth)
    staged = scene(house, 1, 5, {1: prompt_of(1, 6), 2: prompt_of(2, 6)})
    box = house.boxes["scheduler"].messages
    while len(house.outcomes.tokens.get(RequestId(1), ())) < 4 or not any(isinstance(m, StepDone) for m in box):
        house.turn("executor") or house.turn("kv_manager") or house.turn("scheduler")
    if comes_first is StepDone:
        house.cancel(1)
        while box:
            house.turn("scheduler")
        house.run()
        assert house.outcomes.ends[RequestId(1)].reason == "length"
        assert house.outcomes.tokens[RequestId(1)] == expected(staged.prompts[RequestId(1)], 5)
        check_idle(house)
    else:
        box.appendleft(Cancel(RequestId(1)))
        staged.abort()


@DEPTHS
@pytest.mark.parametrize("target", [1, 2, 3])
@pytest.mark.parametrize("turns", range(8))
def test_an_abort_of_any_choice_at_any_time_leaves_its_siblings_alone(target: int, turns: int, depth: int) -> None:
    house = ToyHouse(toy_handshake(max_model_len=64), budget_tokens=8, depth=depth)
    staged = scene(house, target, 9, {1: prompt_of(1, 18), 4: prompt_of(4, 6)}, choices=3)
    for _ in range(turns):
        for name in house.boxes:
            house.turn(name)
    staged.abort()


@DEPTHS
@pytest.mark.parametrize("target", [1, 2, 3])
@pytest.mark.parametrize("turns", range(1, 8))
def test_an_abort_of_who_computes_a_shared_prefix_or_of_who_waits_for_it(target: int, turns: int, depth: int) -> None:
    house = ToyHouse(toy_handshake(max_model_len=64), budget_tokens=8, depth=depth)
    shared = prompt_of(9, 24)
    staged = scene(house, target, 9, {request: [*shared, request, request + 1] for request in (1, 2, 3)})
    for _ in range(turns):
        for name in house.boxes:
            house.turn(name)
    staged.abort()
