"""The scheduler, the KV manager and a toy executor together, in every order of delivery.

Expected tokens come from the toy's closed form over the tokens alone.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core.memory import Rules
from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.prefix_tree import PrefixTree
from asyncpage.core.sampling import SamplingParams
from asyncpage.messages import (
    Admit,
    Ask,
    Drain,
    Ended,
    ExecutorGone,
    LayerGroup,
    RequestId,
    RequestOptions,
    Reserve,
    ResetCache,
    Step,
    StepFailed,
)
from asyncpage.testing.house import ToyHouse
from asyncpage.testing.toy_runner import toy_handshake, toy_tokens

VOCAB = 97
END = 0


def tokens(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count)


def expected(prompt: Sequence[int], count: int, windows: Sequence[int] = (0,), end: int | None = None) -> list[int]:
    return toy_tokens(prompt, count, VOCAB, windows=windows, end=end)


def guess(number: int, row: int, known: Sequence[int], most: int, windows: Sequence[int] = (0,)) -> list[int]:
    """Drafts good, bad, half good, fewer than asked for, or none, by turns."""
    right = toy_tokens(known, most, VOCAB, windows=windows)
    wrong = [(token + 1) % VOCAB for token in right]
    middle = most // 2
    return [right, [*right[:middle], *wrong[middle:]], wrong, right[: middle + 1], []][(2 * number + row) % 5]


def check_ledger(house: ToyHouse) -> None:
    ledger = house.kv_manager.ledger()
    assert ledger.blank + ledger.cached + ledger.referenced == ledger.total


def check_idle(house: ToyHouse) -> None:
    """Baseline when idle: no row holds a block, nobody waits, nothing runs."""
    check_ledger(house)
    assert house.kv_manager.ledger().referenced == 0
    stats = house.scheduler.stats()
    assert (stats["running"], stats["waiting"], stats["in_flight"]) == (0, 0, 0)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_row_that_cannot_sample_yet_computes_its_last_token_again_and_holds_nobody_up(depth: int) -> None:
    house = ToyHouse(toy_handshake(blocks=200), depth=depth, is_late=lambda number, row: row == 1 and number < 20)
    for request in (1, 2):
        house.admit(request, range(10 * request, 10 * request + 5), tokens(12))
    house.run(until=lambda: RequestId(1) in house.outcomes.ends)
    assert house.outcomes.tokens[RequestId(2)] == []
    house.run()
    for request in (1, 2):
        prompt = range(10 * request, 10 * request + 5)
        assert house.outcomes.tokens[RequestId(request)] == expected(prompt, 12)
    check_idle(house)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "groups", [(LayerGroup("full", 0, 1),), (LayerGroup("full", 0, 1), LayerGroup("window", 6, 1))]
)
def test_drafts_bring_the_same_tokens_in_fewer_steps(depth: int, groups: tuple[LayerGroup, ...]) -> None:
    windows = [group.window for group in groups]
    counted = []
    for most_drafts in (0, 5):
        house = ToyHouse(
            toy_handshake(blocks=100, groups=groups),
            depth=depth,
            most_drafts=most_drafts,
            guess=partial(guess, windows=windows),
        )
        for request in range(1, 4):
            house.admit(request, range(10 * request, 10 * request + 5), tokens(30 + request))
        house.run()
        for request in range(1, 4):
            prompt = range(10 * request, 10 * request + 5)
            assert house.outcomes.tokens[RequestId(request)] == expected(prompt, 30 + request, windows)
        check_idle(house)
        counted.append(len(house.steps))
        stats = house.scheduler.stats()
        assert 0 <= stats["accepted_draft_tokens"] <= stats["draft_tokens"]
        assert (stats["accepted_draft_tokens"] > 0) == (most_drafts > 0)
    assert counted[1] < 0.7 * counted[0]


@pytest.mark.parametrize("depth", [1, 2])
def test_an_end_token_inside_drafts_that_are_right_ends_the_request_there(depth: int) -> None:
    prompts = [[n, n + 1] for n in range(1, 90) if END in expected([n, n + 1], 40)]
    assert len(prompts) > 10
    house = ToyHouse(
        toy_handshake(blocks=2000),
        rows=8,
        depth=depth,
        eos_ids=(END,),
        most_drafts=6,
        guess=lambda number, row, known, most: expected(known, most),
    )
    for request, prompt in enumerate(prompts, start=1):
        house.admit(request, prompt, tokens(40))
    house.run()
    for request, prompt in enumerate(prompts, start=1):
        assert house.outcomes.tokens[RequestId(request)] == expected(prompt, 40, end=END)
        assert house.outcomes.ends[RequestId(request)].stop_token == END
    check_idle(house)


@pytest.mark.parametrize("depth", [1, 2])
def test_drafts_keep_no_prompt_waiting(depth: int) -> None:
    house = ToyHouse(
        toy_handshake(blocks=200),
        depth=depth,
        budget_tokens=12,
        most_drafts=7,
        guess=lambda number, row, known, most: expected(known, most),
    )
    house.admit(1, range(5), tokens(100))
    house.admit(2, range(20, 25), tokens(100))
    house.run(until=lambda: len(house.outcomes.tokens.get(RequestId(2), ())) > 10)
    assert max(int(step.counts.sum()) for step in house.steps) == 12
    house.admit(3, range(40, 49), tokens(3))
    before = len(house.steps)
    house.run(until=lambda: RequestId(3) in house.outcomes.ends)
    assert len(house.steps) - before < 8
    assert RequestId(1) not in house.outcomes.ends
    house.run()
    for request, prompt, count in ((1, range(5), 100), (2, range(20, 25), 100), (3, range(40, 49), 3)):
        assert house.outcomes.tokens[RequestId(request)] == expected(prompt, count)


@pytest.mark.parametrize("depth", [1, 2])
def test_rows_that_only_decode_ask_for_memory_once_for_many_steps_and_still_say_what_they_should(depth: int) -> None:
    house = ToyHouse(toy_handshake(blocks=200), depth=depth)
    prompts = {request: [request + 10, *range(20, 24 + request)] for request in range(1, 5)}
    for request, prompt in prompts.items():
        house.admit(request, prompt, tokens(40))
    asked = 0

    def count_and_go_on() -> bool:
        nonlocal asked
        asked += sum(isinstance(message, Reserve) for message in house.boxes["kv_manager"].messages)
        return False

    house.run(until=count_and_go_on)
    for request, prompt in prompts.items():
        assert house.outcomes.tokens[RequestId(request)] == expected(prompt, 40)
    assert asked < len(house.steps) / 2
    check_idle(house)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("after", range(2, 9))
def test_whoever_comes_goes_or_dies_in_the_middle_of_granted_steps_disturbs_nobody(depth: int, after: int) -> None:
    for event in ("comes", "goes", "dies"):
        house = ToyHouse(toy_handshake(blocks=200), depth=depth)
        prompts = {1: [11, 20, 21, 22, 23], 2: [12, 20, 21, 22, 23, 24], 3: [13, 20]}
        house.admit(1, prompts[1], tokens(30))
        house.admit(2, prompts[2], tokens(30))
        house.run(until=lambda house=house: len(house.steps) == after)  # type: ignore[misc]
        if event == "comes":
            house.admit(3, prompts[3], tokens(30))
        elif event == "goes":
            house.cancel(2)
        else:
            house.lose_executor()
        house.run()
        whole = {"comes": (1, 2, 3), "goes": (1,), "dies": (1, 2)}[event]
        for request in whole:
            assert house.outcomes.tokens[RequestId(request)] == expected(prompts[request], 30)
        check_idle(house)


def test_one_request_gets_its_tokens_and_one_end() -> None:
    house = ToyHouse(toy_handshake())
    request = house.admit(1, range(5, 18), tokens(9))
    house.run()
    assert house.outcomes.tokens[request] == expected(range(5, 18), 9)
    assert house.outcomes.ends[request].reason == "length"
    check_idle(house)


def test_an_end_token_ends_the_request_and_is_counted() -> None:
    prompt = next(p for p in ([n] for n in range(1, 97)) if END in expected(p, 20) and expected(p, 20)[0] != END)
    house = ToyHouse(toy_handshake(), eos_ids=(END,))
    request = house.admit(1, prompt, tokens(20))
    house.run()
    assert house.outcomes.tokens[request] == expected(prompt, 20, end=END)
    assert house.outcomes.ends[request].reason == "stop"
    assert house.outcomes.ends[request].stop_token == END


def test_a_prefill_chunk_and_decodes_share_a_step() -> None:
    house = ToyHouse(toy_handshake(), budget_tokens=8)
    house.admit(1, range(1, 6), tokens(30))
    house.run(until=lambda: len(house.outcomes.tokens.get(RequestId(1), ())) >= 2)
    house.admit(2, range(30, 50), tokens(3))
    house.run()
    mixed = [step for step in house.steps if sorted(step.counts.tolist())[0] == 1 and step.counts.max() > 1]
    assert mixed
    assert mixed[0].counts.tolist() == [1, 7]
    assert house.outcomes.tokens[RequestId(2)] == expected(range(30, 50), 3)


def test_two_requests_with_one_prefix_share_the_same_physical_blocks() -> None:
    house = ToyHouse(toy_handshake())
    prefix = list(range(10, 22))
    house.admit(1, [*prefix, 50, 51], tokens(20))
    house.run(until=lambda: len(house.outcomes.tokens.get(RequestId(1), ())) >= 2)
    house.admit(2, [*prefix, 60], tokens(20))
    house.run(until=lambda: RequestId(2) in house.outcomes.cached)
    first, second = house.tables.tables[0, 0, :3].tolist(), house.tables.tables[0, 1, :3].tolist()
    assert first == second
    assert all(house.tables.pool.references(block) == 2 for block in first)
    assert house.tables.tables[0, 0, 3] != house.tables.tables[0, 1, 3]
    assert house.outcomes.cached[RequestId(2)] == 12
    house.run()
    assert house.outcomes.tokens[RequestId(2)] == expected([*prefix, 60], 20)
    check_idle(house)


def test_a_salt_keeps_prompts_of_tenants_apart() -> None:
    house = ToyHouse(toy_handshake())
    for request, salt in ((1, "a"), (2, "b"), (3, "a")):
        house.admit(request, range(20), tokens(2), RequestOptions(cache_salt=salt))
        house.run()
    # All but the one that must be computed.
    assert [house.outcomes.cached[RequestId(i)] for i in (1, 2, 3)] == [0, 0, 19]


def test_a_request_that_refuses_the_cache_neither_reads_nor_feeds_it() -> None:
    house = ToyHouse(toy_handshake())
    house.admit(1, range(20), tokens(2), RequestOptions(use_cache=False))
    house.run()
    assert house.kv_manager.ledger().cached == 0
    house.admit(2, range(20), tokens(2))
    house.run()
    house.admit(3, range(20), tokens(2), RequestOptions(use_cache=False))
    house.run()
    assert [house.outcomes.cached[RequestId(i)] for i in (1, 2, 3)] == [0, 0, 0]


def test_a_published_pool_of_ten_blocks_behaves_as_counted_by_hand() -> None:
    # Ten usable blocks of 16: 55 tokens take 4 blocks; 48 shared tokens hit; a stranger of 160 takes all ten.
    house = ToyHouse(toy_handshake(blocks=11, block_size=16, max_model_len=161), budget_tokens=512)
    prompt = [i % 90 for i in range(55)]
    house.admit(1, prompt, tokens(1))
    house.run(until=lambda: len(house.steps) == 1)
    assert house.tables.held[0] == 4
    house.run()
    house.admit(2, [*prompt[:48], 91, 92], tokens(1))
    house.run()
    assert house.outcomes.cached[RequestId(2)] == 48
    house.admit(3, [(i * 7 + 1) % 90 for i in range(160)], tokens(1))
    house.run()
    assert house.outcomes.cached[RequestId(3)] == 0
    stranger = house.steps[-1].added[0]
    assert sorted(np.frombuffer(stranger.tables[0], dtype=np.int32).tolist()) == list(range(1, 11))
    house.admit(4, prompt, tokens(1))
    house.run()
    assert house.outcomes.cached[RequestId(4)] == 0
    check_idle(house)


def test_the_long_prefill_share_lets_several_prompts_progress_together() -> None:
    handshake = toy_handshake(blocks=400, block_size=16, max_model_len=1000)
    house = ToyHouse(handshake, budget_tokens=1024, long_prefill_tokens=400)
    for request in (1, 2, 3):
        house.admit(request, [request + i % 50 for i in range(800)], tokens(2))
    house.run()
    assert [step.counts.tolist() for step in house.steps[:3]] == [[400, 400, 224], [400, 400, 224], [1, 1, 352]]


def test_prompts_join_rows_that_decode_in_slices_that_take_no_longer_than_these_may_wait() -> None:
    """A token takes a millisecond there, so a step of 24 tokens takes the three quarters of 32 ms that are aimed at."""
    handshake = toy_handshake(blocks=400, block_size=8, max_model_len=1000)
    house = ToyHouse(handshake, budget_tokens=256, itl_target_us=32_000)
    house.admit(1, [i % 50 for i in range(100)], tokens(60))
    house.run(until=lambda: len(house.steps) == 3)
    assert [step.counts.tolist() for step in house.steps] == [[100], [1], [1]]  # nobody waited for the first prompt
    for request in (2, 3):
        house.admit(request, [request + i % 50 for i in range(200)], tokens(8))
    house.run()
    first, *later = house.steps[3:]
    assert first.counts.tolist() == [1, 24]  # what the first prompt told: 24 tokens take 24 ms
    mixed = [step.counts for step in later if step.counts.max() > 1]
    assert all(23 <= counts.sum() <= 25 for counts in mixed[:-1])  # within a token of it, as slices are whole tokens
    both = [step for step in house.steps[3:] if len(step.rows) and 0 in step.rows]
    assert all(step.counts[step.rows.tolist().index(0)] == 1 for step in both)  # and it got its token in every step
    assert {end.reason for end in house.outcomes.ends.values()} == {"length"}
    for request, length, count in ((1, 100, 60), (2, 200, 8), (3, 200, 8)):
        begin = 0 if request == 1 else request
        prompt = [begin + i % 50 for i in range(length)]
        assert house.outcomes.tokens[RequestId(request)] == expected(prompt, count)


def test_a_slice_is_a_block_at_least_so_that_a_prompt_goes_on_whatever_its_neighbours_take() -> None:
    house = ToyHouse(toy_handshake(blocks=400, block_size=8, max_model_len=1000), budget_tokens=256, itl_target_us=1)
    house.admit(1, range(20), tokens(30))
    house.run(until=lambda: len(house.steps) == 2)
    house.admit(2, [3 + i % 50 for i in range(80)], tokens(2))
    house.run()
    assert [step.counts.tolist() for step in house.steps[2:12]] == [[1, 8]] * 10
    assert house.steps[12].counts.tolist() == [1, 1]


def test_without_chunking_a_prompt_that_does_not_fit_the_step_stops_the_pass() -> None:
    house = ToyHouse(toy_handshake(), budget_tokens=32, rules=Rules(chunked_prefill=False))
    house.admit(1, range(20), tokens(4))
    house.admit(2, range(40, 60), tokens(4))
    house.admit(3, range(60, 64), tokens(4))
    house.run()
    assert [step.counts.tolist() for step in house.steps[:2]] == [[20], [1, 20, 4]]


def test_choices_share_their_prompt_by_copy_on_write() -> None:
    house = ToyHouse(toy_handshake(), budget_tokens=64)
    prompt = list(range(3, 17))  # three full blocks and a half
    house.admit(1, prompt, SamplingParams(n=3, max_tokens=12), RequestOptions(use_cache=False))
    house.run(until=lambda: any(len(step.copies) for step in house.steps))
    tables = house.tables.tables[0]
    assert tables[0, :3].tolist() == tables[1, :3].tolist() == tables[2, :3].tolist()
    assert len({int(tables[row, 3]) for row in range(3)}) == 3
    forked = next(step for step in house.steps if len(step.copies))
    assert len(forked.copies) == 2
    assert forked.counts.tolist() == [1, 1, 1]
    house.run()
    for request in (1, 2, 3):
        assert house.outcomes.tokens[RequestId(request)] == expected(prompt, 12)
    check_idle(house)


def test_a_pool_of_one_prompt_preempts_and_still_finishes_everybody() -> None:
    house = ToyHouse(toy_handshake(blocks=9, max_model_len=32), budget_tokens=16)
    prompts = {i: [i * 7 + j for j in range(9)] for i in range(1, 7)}
    for request, prompt in prompts.items():
        house.admit(request, prompt, tokens(20))
    house.run()
    for request, prompt in prompts.items():
        assert house.outcomes.tokens[RequestId(request)] == expected(prompt, 20)
    assert house.scheduler.stats()["preemptions"] > 0
    check_idle(house)


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers() -> None:
    house = ToyHouse(toy_handshake(blocks=5, max_model_len=64))
    request = house.admit(1, range(20), tokens(4))
    house.run()
    failure = house.outcomes.refused[request].failure
    assert failure.status == 400
    assert failure.code == "context_length_exceeded"
    assert "20 tokens" in failure.message
    assert "5 KV blocks" in failure.message


def test_a_full_queue_refuses_with_429_and_names_itself() -> None:
    house = ToyHouse(toy_handshake(), rows=1, max_queue=2)
    for request in range(1, 6):
        house.admit(request, range(5), tokens(3))
    house.run()
    refused = house.outcomes.refused
    assert sorted(refused) == [4, 5]
    assert {r.failure.status for r in refused.values()} == {429}
    assert all(
        r.failure.retry_after_s and "waiting queue of the scheduler" in r.failure.message for r in refused.values()
    )


def test_draining_refuses_what_comes_and_finishes_what_was_accepted() -> None:
    house = ToyHouse(toy_handshake())
    first = house.admit(1, range(5), tokens(6))
    house.boxes["scheduler"].send(Drain())
    second = house.admit(2, range(5), tokens(6))
    house.run()
    assert house.outcomes.ends[first].reason == "length"
    assert house.outcomes.refused[second].failure.status == 503


def test_priority_serves_the_smallest_number_first_and_preempts_the_largest() -> None:
    house = ToyHouse(toy_handshake(), rows=1, policy="priority")
    for request, level in ((1, 5), (2, 5), (3, 1), (4, -2)):
        house.admit(request, range(5), tokens(3), RequestOptions(priority=level))
    house.run()
    order = [int(new.request) for step in house.steps for new in step.added]
    assert order == [4, 3, 1, 2]


def test_a_deadline_ends_a_waiting_and_a_running_request_with_504() -> None:
    house = ToyHouse(toy_handshake(), rows=1)
    running = house.admit(1, range(5), tokens(100), RequestOptions(deadline=house.clock.now() + 3))
    waiting = house.admit(2, range(5), tokens(4), RequestOptions(deadline=house.clock.now() + 2))
    patient = house.admit(3, range(5), tokens(4), RequestOptions(deadline=house.clock.now() + 50))
    house.run(until=lambda: len(house.outcomes.tokens.get(running, ())) >= 2)
    house.clock.advance(4)
    house.run()
    for request in (running, waiting):
        failure = house.outcomes.ends[request].failure
        assert failure is not None
        assert failure.status == 504
    assert house.outcomes.tokens[patient] == expected(range(5), 4)
    assert house.clock.armed() == ()
    check_idle(house)


def test_no_tokens_are_asked_for_and_none_are_computed() -> None:
    house = ToyHouse(toy_handshake())
    request = house.admit(1, range(5), tokens(0))
    house.run()
    assert house.outcomes.ends[request].reason == "length"
    assert house.steps == []


@pytest.mark.parametrize("budget", [4, 32])
def test_logprobs_of_a_prompt_alone_bring_no_token_however_the_prompt_is_cut(budget: int) -> None:
    house = ToyHouse(toy_handshake(), budget_tokens=budget)
    request = house.admit(1, range(5, 12), SamplingParams(max_tokens=0, prompt_logprobs=1))
    house.run()
    assert house.outcomes.tokens[request] == []
    assert house.outcomes.ends[request].reason == "length"
    assert sum(int(step.counts.sum()) for step in house.steps) == 6  # what follows the last token is not asked for
    check_idle(house)


def test_a_matched_stop_string_ends_the_row_without_a_second_end() -> None:
    house = ToyHouse(toy_handshake())
    request = house.admit(1, range(5), tokens(50))
    house.run(until=lambda: len(house.outcomes.tokens.get(request, ())) >= 3)
    house.boxes["scheduler"].send(Ended(request, 3))
    house.run()
    assert request not in house.outcomes.ends
    check_idle(house)


def test_a_poisonous_request_is_found_by_halving_and_harms_nobody_else() -> None:
    house = ToyHouse(toy_handshake(blocks=200), poison=96, budget_tokens=200, rows=16)
    prompts = {i: [i, i + 1, i + 2, i + 3, i + 4] for i in range(1, 10)}
    prompts[5] = [1, 96, 3]
    for request, prompt in prompts.items():
        house.admit(request, prompt, tokens(6))
    house.run()
    failure = house.outcomes.ends[RequestId(5)].failure
    assert failure is not None
    assert failure.code == "poison"
    for request, prompt in prompts.items():
        own = expected(prompt, 6)
        if request != 5 and 96 not in own[:-1]:
            assert house.outcomes.tokens[RequestId(request)] == own
            assert house.outcomes.ends[RequestId(request)].reason == "length"
    check_idle(house)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_poison_is_found_as_fast_among_long_answers(depth: int) -> None:
    poison = VOCAB + 1  # no answer holds it
    house = ToyHouse(
        toy_handshake(blocks=400, max_model_len=100), poison=poison, budget_tokens=200, rows=16, depth=depth
    )
    prompts = {i: [i, i + 1, i + 2] for i in range(1, 9)} | {5: [1, poison, 3]}
    for request, prompt in prompts.items():
        house.admit(request, prompt, tokens(60))
    failures: list[StepFailed] = []

    def poison_is_found() -> bool:
        messages = house.boxes["scheduler"].messages
        failures.extend(m for m in messages if isinstance(m, StepFailed) and m not in failures)
        return RequestId(5) in house.outcomes.ends

    house.run(until=poison_is_found)
    assert len(failures) == 3  # all eight, the half that holds it, itself alone
    assert len(house.steps) <= 3 + 2
    house.run()
    for request in prompts.keys() - {5}:
        assert house.outcomes.tokens[RequestId(request)] == expected(prompts[request], 60)
    check_idle(house)


def test_the_request_that_kills_every_executor_is_failed_and_the_others_go_on() -> None:
    house = ToyHouse(toy_handshake(), rows=4)
    for request in (1, 2, 3):
        house.admit(request, [request * 10 + i for i in range(6)], tokens(5))
    killer = RequestId(2)

    def holds_killer(message: object) -> bool:
        return isinstance(message, Step) and any(new.request == killer for new in message.added)

    is_busy = True
    while is_busy:
        is_busy = house.turn("scheduler") | house.turn("kv_manager")
        if any(holds_killer(message) for message in house.boxes["executor"].messages):
            house.lose_executor()
            is_busy = True
        else:
            is_busy |= house.turn("executor")
    failure = house.outcomes.ends[killer].failure
    assert failure is not None
    assert failure.code == "poison"
    for request in (1, 3):
        assert house.outcomes.tokens[RequestId(request)] == expected([request * 10 + i for i in range(6)], 5)
    check_idle(house)


def test_a_spent_restart_budget_ends_every_request_and_refuses_new_ones() -> None:
    house = ToyHouse(toy_handshake(), rows=1)
    for request in (1, 2):
        house.admit(request, range(5), tokens(9))
    house.run(until=lambda: len(house.outcomes.tokens.get(RequestId(1), ())) >= 2)
    house.boxes["executor"].messages.clear()
    house.boxes["scheduler"].send(ExecutorGone("five losses in a row"))
    house.admit(3, range(5), tokens(9))
    house.run()
    for request in (1, 2):
        failure = house.outcomes.ends[RequestId(request)].failure
        assert failure is not None
        assert "five losses in a row" in failure.message
    assert house.outcomes.refused[RequestId(3)].failure.status == 503
    check_idle(house)


GROUPS = {
    "full": (LayerGroup("full", 0, 1),),
    "full and window": (LayerGroup("full", 0, 1), LayerGroup("window", 6, 1)),
    "two windows": (LayerGroup("window", 3, 1), LayerGroup("window", 9, 1)),
}
# Prompts are a beginning of one of two texts, and their own end behind that: many begin alike, some are equal.
PROMPTS = st.tuples(st.integers(0, 1), st.integers(0, 26), st.integers(0, 5), st.integers(1, 4))
EVENTS = st.one_of(
    st.tuples(st.just("admit"), PROMPTS, st.integers(1, 20), st.integers(1, 3), st.sampled_from([True, True, False])),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("lose")),
    st.tuples(st.just("reset")),
    st.tuples(st.sampled_from(["scheduler", "kv_manager", "executor"]), st.integers(1, 6)),
)


@pytest.mark.parametrize("index", [PrefixChain, PrefixTree])
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("depth", [1, 2])
@settings(max_examples=40, deadline=None)
@given(
    events=st.lists(EVENTS, max_size=60),
    blocks=st.integers(17, 40),
    budget=st.integers(4, 24),
    share=st.sampled_from([0, 3, 8]),
    late=st.sampled_from([0, 0, 2, 5]),
    most_drafts=st.sampled_from([0, 1, 3, 7]),
    target_us=st.sampled_from([0, 1000, 9000]),
)
def test_every_request_ends_once_with_its_own_tokens_in_any_order_of_events(
    groups: tuple[LayerGroup, ...],
    depth: int,
    index: type[PrefixIndex],
    events: list[tuple[object, ...]],
    blocks: int,
    budget: int,
    share: int,
    late: int,
    most_drafts: int,
    target_us: int,
) -> None:
    handshake = toy_handshake(blocks=blocks * len(groups), groups=groups, max_model_len=56)
    house = ToyHouse(
        handshake,
        rows=4,
        depth=depth,
        budget_tokens=budget,
        long_prefill_tokens=share,
        index=index,
        is_late=lambda number, row: (5 * number + 3 * row) % 7 < late,
        most_drafts=most_drafts,
        guess=partial(guess, windows=[group.window for group in groups]),
        itl_target_us=target_us,
    )
    windows = [group.window for group in groups]
    prompts: dict[RequestId, tuple[list[int], int]] = {}
    cancelled: set[RequestId] = set()
    next_id = 1
    for event in events:
        match event:
            case ("admit", (int(text), int(shared), int(who), int(own)), int(count), int(n), bool(use_cache)):
                prompt = [*range(40 * text, 40 * text + shared), *range(80 + who, 80 + who + own)]
                house.admit(next_id, prompt, SamplingParams(n=n, max_tokens=count), RequestOptions(use_cache=use_cache))
                prompts |= {RequestId(next_id + i): (prompt, count) for i in range(n)}
                next_id += n
            case ("cancel", int(which)) if next_id > 1:
                request = RequestId(1 + which % (next_id - 1))
                house.cancel(request)
                cancelled.add(request)
            case ("lose",):
                house.lose_executor()
            case ("reset",):
                house.boxes["kv_manager"].send(Ask(token=0, frontend=0, question=ResetCache()))
            case (str(name), int(times)) if name in house.boxes:
                for _ in range(times):
                    house.turn(name)
                check_ledger(house)
    house.run()
    poisoned = {r for r, end in house.outcomes.ends.items() if end.failure and end.failure.code == "poison"}
    assert set(house.outcomes.ends) == set(prompts)
    for request, (prompt, count) in prompts.items():
        own = expected(prompt, count, windows)
        end = house.outcomes.ends[request]
        if request in poisoned or end.reason == "abort":
            assert request in poisoned | cancelled
            assert house.outcomes.tokens[request] == own[: len(house.outcomes.tokens[request])]
        else:
            assert end.reason == "length"
            assert house.outcomes.tokens[request] == own
    check_idle(house)


def test_an_admission_that_failed_before_it_was_accepted_is_refused_and_one_after_brings_the_house_down() -> None:
    house = ToyHouse(toy_handshake())
    prompt = array("i", range(5)).tobytes()
    fresh = Admit(RequestId(1), prompt, (), SamplingParams(n=2), RequestOptions())
    assert house.scheduler.fail(fresh, ValueError("broken"))
    assert {request: refused.failure.status for request, refused in house.outcomes.refused.items()} == {1: 500, 2: 500}
    house.admit(3, range(5), SamplingParams(n=2, max_tokens=4))
    house.run(until=lambda: len(house.outcomes.accepted) == 2)
    accepted = Admit(RequestId(3), prompt, (), SamplingParams(n=2), RequestOptions())
    assert not house.scheduler.fail(accepted, ValueError("broken"))


def test_a_row_that_leaves_in_the_step_that_admits_another_gives_its_row_away() -> None:
    house = ToyHouse(toy_handshake(), rows=1, depth=2)
    house.admit(1, range(5), tokens(3))
    house.admit(2, range(9, 14), tokens(3))
    house.run()
    assert house.outcomes.tokens[RequestId(2)] == expected(range(9, 14), 3)
    assert {int(step.rows[0]) for step in house.steps} == {0}


def test_the_prompt_is_not_changed_by_a_choice_of_another_length() -> None:
    house = ToyHouse(toy_handshake())
    sampling = tokens(4)
    house.admit(1, range(8), sampling)
    house.admit(2, range(8), replace(sampling, max_tokens=9))
    house.run()
    assert house.outcomes.tokens[RequestId(1)] == house.outcomes.tokens[RequestId(2)][:4]
