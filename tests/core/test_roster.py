"""Where a request stands: held, waiting or running, and who is offered a place."""

from array import array

import numpy as np
import pytest

from asyncpage.core.block_names import chain_names
from asyncpage.core.policy import Fcfs, last_admitted
from asyncpage.core.roster import Roster
from asyncpage.core.running import Running
from asyncpage.core.sampling import SamplingParams
from asyncpage.core.sequence import Sequence, sequences
from asyncpage.messages import Admission, Admit, Int32, RequestId, RequestOptions, StepDone


def make(request: int, n: int = 1, prompt: int = 6, prompt_logprobs: int | None = None) -> list[Sequence]:
    tokens = array("i", range(prompt)).tobytes()
    sampling = SamplingParams(n=n, max_tokens=20, prompt_logprobs=prompt_logprobs)
    admit = Admit(RequestId(request), tokens, chain_names(tokens, 4), sampling, RequestOptions())
    return sequences(admit, arrival=request, max_tokens=60, block_size=4, eos_ids=(), seed=0)


def make_roster(*prompts: list[Sequence], rows: int = 4) -> Roster:
    policy = Fcfs()
    running = Running(rows=rows, block_size=4, max_tokens=60, vocab_size=97, policy=policy, victims=last_admitted)
    roster = Roster(running, policy, rows=rows, block_size=4, fairness_bound=0)
    for made in prompts:
        roster.add(made)
    return roster


def offered(roster: Roster, budget: int = 100) -> list[int]:
    return [candidate.request for candidate in roster.candidates(budget)]


def run(roster: Roster, request: int, row: int, computed: int = 0) -> Sequence:
    return roster.open(Admission(RequestId(request), row, computed, 0, ()))


def ints(*numbers: int) -> Int32:
    return np.array(numbers, dtype=np.int32)


def compute(roster: Roster, row: int, count: int, *tokens: int) -> None:
    """The row computes its next `count` tokens, and each of `tokens` is sampled in a step of its own."""
    for number, (own, token) in enumerate(((count, tokens[0]), *((1, token) for token in tokens[1:])), start=1):
        roster.running.launch(number, 1, ints(row), ints(own))
        roster.running.settle(StepDone(number, 1, ints(row), ints(1), ints(token)))


def test_as_many_are_offered_as_have_rows_and_could_share_the_budget() -> None:
    roster = make_roster(make(3), make(1), make(2), rows=2)
    assert offered(roster) == [1, 2]
    assert offered(roster, budget=1) == [1]
    run(roster, 1, 0)
    assert offered(roster) == [2]
    run(roster, 2, 1)
    assert offered(roster) == []
    assert (len(roster), roster.waiting) == (3, 1)


@pytest.mark.parametrize("way_out", ["cancelled", "sent back", "computed"])
def test_choices_are_held_until_their_leader_has_computed_the_prompt_or_will_not(way_out: str) -> None:
    roster = make_roster(make(1, n=3))
    leader = run(roster, 1, 0)
    assert offered(roster) == []
    if way_out == "cancelled":
        assert roster.remove(leader) == 0
        assert offered(roster) == [2, 3]
    elif way_out == "sent back":
        assert roster.send_back(leader) == 0
        assert offered(roster) == [1, 2, 3]
    else:
        roster.running.computed[0] = 4
        roster.let_served_children_wait()
        assert offered(roster) == []
        roster.running.computed[0] = 5  # all but the last, which each computes for itself
        roster.let_served_children_wait()
        assert [(c.request, c.fork_row) for c in roster.candidates(100)] == [(2, 0), (3, 0)]


def test_a_held_choice_can_leave_before_its_leader_and_is_not_offered_later() -> None:
    made = make(1, n=3)
    roster = make_roster(made)
    run(roster, 1, 0)
    assert roster.remove(made[1]) is None
    roster.let_children_wait(made[0])
    assert offered(roster) == [3]
    for sequence in (made[0], made[2]):
        roster.remove(sequence)
    assert (len(roster), roster.waiting, len(roster.running)) == (0, 0, 0)


def test_choices_that_report_their_prompts_logprobs_compute_it_each_for_itself() -> None:
    roster = make_roster(make(1, n=2, prompt_logprobs=0))
    run(roster, 1, 0)
    roster.running.computed[0] = 6
    assert [(c.request, c.fork_row, c.read_cache) for c in roster.candidates(100)] == [(2, -1, False)]


def test_a_request_that_is_sent_back_waits_at_its_place_with_all_its_tokens_named() -> None:
    roster = make_roster(make(1), make(2))
    first = run(roster, 1, 3)
    compute(roster, 3, 6, 9, 8)
    assert roster.send_back(first) == 3
    candidate = roster.candidates(100)[0]
    assert (candidate.request, candidate.known) == (1, 8)
    tokens = array("i", [0, 1, 2, 3, 4, 5, 9, 8]).tobytes()
    assert (candidate.prefix.tokens, candidate.prefix.names) == (tokens, chain_names(tokens, 4))
    assert first.computed == 7  # the last token's turn had not come


def test_a_parked_request_keeps_its_place_and_is_offered_again_when_it_is_woken() -> None:
    roster = make_roster(make(1), make(2), make(3))
    roster.park([RequestId(1), RequestId(2)])
    assert offered(roster) == [3]
    assert roster.waiting == 3
    roster.wake([RequestId(2), RequestId(9)])  # 9 has left meanwhile
    assert offered(roster) == [2, 3]
    roster.wake_all()
    assert offered(roster) == [1, 2, 3]


def test_a_parked_request_can_leave_and_waking_it_later_brings_nothing_back() -> None:
    made = make(1)
    roster = make_roster(made, make(2))
    roster.park([RequestId(1)])
    assert roster.remove(made[0]) is None
    roster.wake([RequestId(1)])
    assert offered(roster) == [2]
    assert (len(roster), roster.waiting) == (1, 1)


def test_while_suspects_are_tried_the_others_make_way_and_are_not_offered() -> None:
    roster = make_roster(make(1), make(2), make(3), make(4))
    for request in (1, 2):
        run(roster, request, request)
    assert roster.make_way() == []
    roster.quarantine.step_failed({RequestId(2): 6, RequestId(3): 6})  # halves: 2, then 3
    assert roster.make_way() == [1]
    assert [sequence.request for sequence in roster.running.occupants()] == [2]
    assert offered(roster) == []
    roster.quarantine.step_finished({RequestId(2): 6})
    assert roster.make_way() == [2]
    assert offered(roster) == [3]
    found = roster.find(RequestId(3))
    assert found is not None
    roster.remove(found)
    assert offered(roster) == [1, 2, 4]
