"""What a request takes over from those before it, to the token, with the toy executor that computes with its blocks.

Expected tokens come from the toy's closed form, expected counts from comparing one request's tokens with another's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.prefix_tree import PrefixTree
from asyncpage.core.sampling import SamplingParams
from asyncpage.messages import Answer, Ask, Cancel, Ended, LayerGroup, RequestId, RequestOptions, ResetCache
from asyncpage.testing.house import ToyHouse
from asyncpage.testing.toy_runner import toy_handshake, toy_tokens

VOCAB = 97
PROMPT = list(range(10, 30))
INDEXES = [PrefixChain, PrefixTree]
GROUPS = {
    "full": (LayerGroup("full", 0, 1),),
    "full and window": (LayerGroup("full", 0, 1), LayerGroup("window", 6, 1)),
    "two windows": (LayerGroup("window", 3, 1), LayerGroup("window", 9, 1)),
}


def tokens(count: int, **more: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, **more)


def expected(prompt: Sequence[int], count: int, windows: Sequence[int] = (0,)) -> list[int]:
    return toy_tokens(prompt, count, VOCAB, windows=windows)


def ask(house: ToyHouse, request: int, prompt: Sequence[int], count: int = 1) -> int:
    """One request from its beginning to its end, with the right answer; its cached tokens."""
    house.admit(request, prompt, tokens(count))
    house.run()
    windows = [group.window for group in house.handshake.groups]
    assert house.outcomes.tokens[RequestId(request)] == expected(prompt, count, windows)
    return house.outcomes.cached[RequestId(request)]


def computed(house: ToyHouse) -> Counter[RequestId]:
    """Tokens that the executor has computed for each request."""
    rows: dict[int, RequestId] = {}
    counts = Counter[RequestId]()
    for step in house.steps:
        rows |= {new.row: new.request for new in step.added}
        for row, count in zip(step.rows.tolist(), step.counts.tolist(), strict=True):
            counts[rows[row]] += count
    return counts


def check_idle(house: ToyHouse) -> None:
    ledger = house.kv_manager.ledger()
    assert (ledger.referenced, ledger.blank + ledger.cached) == (0, ledger.total)
    stats = house.scheduler.stats()
    assert (stats["running"], stats["waiting"], stats["in_flight"]) == (0, 0, 0)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# --- one case each ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("length", [16, 17, 18, 19, 20])
def test_a_full_hit_computes_one_token(index: type[PrefixIndex], length: int) -> None:
    house = ToyHouse(toy_handshake(), index=index)
    assert ask(house, 1, PROMPT[:length], 4) == 0
    assert ask(house, 2, PROMPT[:length], 4) == length - 1
    assert computed(house) == {1: length + 3, 2: 1 + 3}
    check_idle(house)


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("shared", range(1, 20))
def test_a_prompt_that_leaves_another_inside_a_block_takes_over_every_token_up_to_there(
    index: type[PrefixIndex], shared: int
) -> None:
    house = ToyHouse(toy_handshake(), index=index)
    ask(house, 1, PROMPT)
    assert ask(house, 2, [*PROMPT[:shared], 90, 91, 92], 5) == shared
    assert computed(house)[RequestId(2)] == 3 + 4


@pytest.mark.parametrize("index", INDEXES)
def test_the_next_turn_of_a_conversation_takes_over_the_answer_but_for_its_last_token(
    index: type[PrefixIndex],
) -> None:
    house = ToyHouse(toy_handshake(), index=index)
    answer = expected(PROMPT, 7)
    ask(house, 1, PROMPT, 7)
    assert ask(house, 2, [*PROMPT, *answer, 50], 3) == 20 + 6  # nothing came after the seventh
    check_idle(house)


def test_a_running_requests_last_block_is_no_donor_before_it_is_full() -> None:
    house = ToyHouse(toy_handshake(), budget_tokens=64)
    house.admit(1, PROMPT[:18], tokens(40))
    house.run(until=lambda: len(house.outcomes.tokens.get(RequestId(1), ())) >= 1)
    assert ask(house, 2, [*PROMPT[:18], 90]) == 16


@pytest.mark.parametrize("depth", [1, 2])
def test_a_donor_whose_owner_ends_in_the_same_step_is_copied_from(depth: int) -> None:
    house = ToyHouse(toy_handshake(), rows=1, depth=depth)
    house.admit(1, PROMPT[:18], tokens(1))
    house.admit(2, [*PROMPT[:18], 90], tokens(6))
    house.run()
    assert house.outcomes.cached[RequestId(2)] == 18
    assert [len(step.copies) for step in house.steps if step.added] == [0, 1]
    assert house.outcomes.tokens[RequestId(2)] == expected([*PROMPT[:18], 90], 6)
    check_idle(house)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("index", INDEXES)
def test_a_free_donor_is_not_handed_out_while_it_is_copied_from_and_right_after(
    index: type[PrefixIndex], depth: int
) -> None:
    # Four blocks: 11 tokens leave three cached and one blank. The second shares two, copies from the third into the
    # blank one, and needs a fourth of its own for its last tokens, which can only be the donor.
    house = ToyHouse(toy_handshake(blocks=5, max_model_len=16), index=index, depth=depth)
    ask(house, 1, PROMPT[:11])
    assert ask(house, 2, [*PROMPT[:10], 90, 91], 4) == 10
    assert computed(house)[RequestId(2)] == 2 + 3
    check_idle(house)


@pytest.mark.parametrize("index", INDEXES)
def test_a_request_that_fits_only_without_its_donor_computes_those_tokens_again(index: type[PrefixIndex]) -> None:
    house = ToyHouse(toy_handshake(blocks=4, max_model_len=12), index=index)
    ask(house, 1, PROMPT[:11])
    assert ask(house, 2, [*PROMPT[:10], 90]) == 8
    assert sum(len(step.copies) for step in house.steps) == 0
    check_idle(house)


@pytest.mark.parametrize("way_out", ["cancelled", "stop string"])
def test_a_request_that_ends_early_leaves_what_it_has_computed_and_what_counts(way_out: str) -> None:
    house = ToyHouse(toy_handshake())
    answer = expected(PROMPT, 9)
    house.admit(1, PROMPT, tokens(50))
    house.run(until=lambda: len(house.outcomes.tokens.get(RequestId(1), ())) >= 5)
    computed_so_far = len(PROMPT) + len(house.outcomes.tokens[RequestId(1)]) - 1
    if way_out == "cancelled":
        house.boxes["scheduler"].send(Cancel(RequestId(1)))
        left = computed_so_far
    else:
        house.boxes["scheduler"].send(Ended(RequestId(1), 2))
        left = max(len(PROMPT) + 2, computed_so_far // 4 * 4)  # full blocks are named already
    house.run()
    assert ask(house, 2, [*PROMPT, *answer, 50]) == left


def test_a_salt_keeps_tails_apart_too() -> None:
    house = ToyHouse(toy_handshake())
    for request, salt in ((1, "a"), (2, "b"), (3, "a")):
        house.admit(request, PROMPT[:3], tokens(1), RequestOptions(cache_salt=salt))
        house.run()
    assert [house.outcomes.cached[RequestId(i)] for i in (1, 2, 3)] == [0, 0, 2]


def test_prompts_logprobs_are_computed_whatever_is_cached_and_feed_the_cache() -> None:
    house = ToyHouse(toy_handshake())
    ask(house, 1, PROMPT[:12])
    house.admit(2, PROMPT, tokens(1, prompt_logprobs=0))
    house.run()
    assert house.outcomes.cached[RequestId(2)] == 0
    assert computed(house)[RequestId(2)] == 20
    assert ask(house, 3, [*PROMPT, 90]) == 20


# --- a reset while requests run ---------------------------------------------------------------------------------------


def reset(house: ToyHouse) -> object:
    """What a front end is told when it asks for it."""
    house.boxes["kv_manager"].send(Ask(token=7, frontend=0, question=ResetCache()))
    house.turn("kv_manager")
    answer = house.heard.messages.pop()
    assert isinstance(answer, Answer)
    assert answer.token == 7
    return answer.value


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_nothing_computed_before_a_reset_is_found_after_it(
    index: type[PrefixIndex], groups: tuple[LayerGroup, ...]
) -> None:
    house = ToyHouse(toy_handshake(groups=groups, blocks=200), index=index)
    ask(house, 1, PROMPT)
    house.admit(2, range(40, 60), tokens(30))
    house.run(until=lambda: len(house.outcomes.tokens.get(RequestId(2), ())) >= 5)
    house.turn("kv_manager")  # whatever was on its way
    cached = house.kv_manager.ledger().cached
    assert cached >= 5
    assert reset(house) == cached
    assert (house.kv_manager.ledger().cached, len(house.tables.index)) == (0, 0)
    windows = [group.window for group in groups]
    answer = expected(range(40, 60), 30, windows)
    assert ask(house, 3, [*range(40, 60), *answer[:3]]) == 0
    assert ask(house, 4, PROMPT) == 0
    house.run()
    assert house.outcomes.tokens[RequestId(2)] == answer
    check_idle(house)


def test_requests_that_wait_for_a_promise_compute_their_prompt_after_a_reset() -> None:
    house = ToyHouse(toy_handshake(), budget_tokens=8)
    for request in (1, 2):
        house.admit(request, PROMPT, tokens(3))
    house.run(until=lambda: len(house.steps) == 1)
    reset(house)
    house.run()
    assert house.outcomes.cached == {1: 0, 2: 0}
    assert all(house.outcomes.tokens[RequestId(i)] == expected(PROMPT, 3) for i in (1, 2))
    check_idle(house)


# --- any history ------------------------------------------------------------------------------------------------------

ASKED = st.tuples(st.integers(0, 5), st.integers(0, 24), st.lists(st.integers(1, 2), max_size=9), st.integers(1, 9))


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@settings(max_examples=40, deadline=None)
@given(asked=st.lists(ASKED, min_size=1, max_size=8))
def test_one_after_another_each_takes_over_the_longest_beginning_of_any_before_it(
    index: type[PrefixIndex], groups: tuple[LayerGroup, ...], asked: list[tuple[int, int, list[int], int]]
) -> None:
    house = ToyHouse(toy_handshake(blocks=400, groups=groups), index=index)
    windows = [group.window for group in groups]
    past: list[list[int]] = []  # tokens whose KV was computed
    for request, (whose, kept, more, count) in enumerate(asked):
        begun = past[whose % len(past)][:kept] if past else []
        prompt = [*begun, *more] or [1]
        cached = ask(house, request, prompt, count)
        longest = min(len(prompt) - 1, max((common(prompt, other) for other in past), default=0))
        assert cached == longest if windows == [0] else cached <= longest
        past.append([*prompt, *expected(prompt, count, windows)][:-1])
    check_idle(house)
