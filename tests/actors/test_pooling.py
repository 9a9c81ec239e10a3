"""Prompts that are to be pooled: one vector and one end each, in every order of delivery.

Expected vectors come from the toy's closed form over the tokens alone; its own are read through the KV blocks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core.memory import Rules
from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.core.sampling import SamplingParams
from asyncpage.messages import Pooling, RequestId, RequestOptions, StepDone
from asyncpage.testing.house import ToyHouse
from asyncpage.testing.toy_runner import toy_embedding, toy_handshake, toy_tokens

Kind = Literal["last", "mean", "cls"]
NO_TOKENS = SamplingParams(max_tokens=0)
KINDS: tuple[Kind, ...] = ("last", "mean", "cls")


def pooling(kind: Kind) -> RequestOptions:
    return RequestOptions(pooling=Pooling(kind))


def vector(house: ToyHouse, request: RequestId) -> list[float]:
    found: list[float] = np.frombuffer(house.outcomes.ends[request].embedding, dtype="<f4").tolist()
    return found


def check_idle(house: ToyHouse) -> None:
    ledger = house.kv_manager.ledger()
    assert (ledger.referenced, ledger.blank + ledger.cached) == (0, ledger.total)
    stats = house.scheduler.stats()
    assert (stats["running"], stats["waiting"], stats["in_flight"]) == (0, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("length", [1, 4, 7, 128])
def test_a_prompt_of_any_length_gets_its_vector_with_its_end_and_no_token(kind: Kind, depth: int, length: int) -> None:
    house = ToyHouse(toy_handshake(), depth=depth, budget_tokens=9)
    prompt = [1 + place % 90 for place in range(length)]  # up to the whole context: nothing needs room behind it
    request = house.admit(1, prompt, NO_TOKENS, pooling(kind))
    house.run()
    assert house.outcomes.ends[request].reason == "stop"
    assert vector(house, request) == toy_embedding(prompt, kind)
    assert house.outcomes.tokens[request] == []
    assert sum(int(step.counts.sum()) for step in house.steps) == length
    check_idle(house)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cached_beginning_is_read_only_where_the_last_state_alone_is_wanted(kind: Kind) -> None:
    house = ToyHouse(toy_handshake(), index=PrefixChain)
    prompt = list(range(1, 22))
    house.admit(1, prompt, NO_TOKENS, pooling("mean"))
    house.run()
    request = house.admit(2, [*prompt, 50], NO_TOKENS, pooling(kind))
    house.run()
    assert house.outcomes.cached[request] == (21 if kind == "last" else 0)
    assert vector(house, request) == toy_embedding([*prompt, 50], kind)


def test_a_generated_answer_finds_what_a_pooled_prompt_has_computed() -> None:
    house = ToyHouse(toy_handshake(), index=PrefixChain)
    prompt = list(range(1, 18))
    house.admit(1, prompt, NO_TOKENS, pooling("last"))
    house.run()
    request = house.admit(2, prompt, SamplingParams(max_tokens=5))
    house.run()
    assert house.outcomes.cached[request] == 16
    assert house.outcomes.tokens[request] == toy_tokens(prompt, 5, 97)


def test_one_whose_client_leaves_has_one_end_and_no_vector() -> None:
    house = ToyHouse(toy_handshake(), budget_tokens=4)
    request = house.admit(1, range(1, 30), NO_TOKENS, pooling("mean"))
    house.run(until=lambda: len(house.steps) == 3)
    house.cancel(1)
    house.run()
    assert (house.outcomes.ends[request].reason, house.outcomes.ends[request].embedding) == ("abort", b"")
    check_idle(house)


def test_an_executor_that_brings_no_vector_fails_the_request_instead_of_leaving_it_without() -> None:
    house = ToyHouse(toy_handshake())
    request = house.admit(1, range(1, 10), NO_TOKENS, pooling("mean"))
    house.run(until=lambda: bool(house.boxes["scheduler"].messages) and bool(house.steps))
    waiting = house.boxes["scheduler"].messages
    done = waiting.popleft()
    assert isinstance(done, StepDone)
    assert [part.row for part in done.pooled] == [0]
    waiting.appendleft(replace(done, pooled=()))
    house.run()
    failure = house.outcomes.ends[request].failure
    assert failure is not None
    assert failure.status == 500
    check_idle(house)


Job = tuple[Sequence[int], Kind | None]
JOBS = st.lists(
    st.tuples(st.lists(st.integers(1, 3), min_size=1, max_size=24), st.sampled_from((*KINDS, None))),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(jobs=JOBS, depth=st.integers(1, 2), blocks=st.integers(9, 24), budget=st.integers(8, 20), data=st.data())
def test_vectors_and_answers_are_right_however_the_work_is_cut_preempted_and_lost(
    jobs: Sequence[Job], depth: int, blocks: int, budget: int, data: st.DataObject
) -> None:
    rules = Rules(whole_prompt=data.draw(st.booleans()))
    toy = toy_handshake(blocks=blocks, max_model_len=32)
    house = ToyHouse(toy, depth=depth, budget_tokens=budget, rules=rules, index=PrefixChain)
    for request, (prompt, kind) in enumerate(jobs, start=1):
        if kind is None:
            house.admit(request, prompt, SamplingParams(max_tokens=6))
        else:
            house.admit(request, prompt, NO_TOKENS, pooling(kind))
        for _ in range(data.draw(st.integers(0, 6))):
            house.turn(data.draw(st.sampled_from(("scheduler", "kv_manager", "executor"))))
    if data.draw(st.booleans()):
        house.lose_executor()
    house.run()
    for number, (prompt, kind) in enumerate(jobs, start=1):
        request = RequestId(number)
        if kind is None:
            assert house.outcomes.tokens[request] == toy_tokens(prompt, 6, 97)
        else:
            assert house.outcomes.ends[request].reason == "stop"
            assert vector(house, request) == toy_embedding(prompt, kind)
    check_idle(house)
