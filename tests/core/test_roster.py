"""Where a request stands: held, waiting or running, and who is offered a place."""

from array import array

import pytest

from asyncpage.core.policy import fcfs
from asyncpage.core.prefix_chain import chain_names
from asyncpage.core.roster import Roster
from asyncpage.core.sampling import SamplingParams
from asyncpage.core.sequence import Sequence, sequences
from asyncpage.messages import Admission, Admit, RequestId, RequestOptions


def make(request: int, n: int = 1, prompt: int = 6, prompt_logprobs: int | None = None) -> list[Sequence]:
    tokens = array("i", range(prompt)).tobytes()
    sampling = SamplingParams(n=n, max_tokens=20, prompt_logprobs=prompt_logprobs)
    admit = Admit(RequestId(request), tokens, chain_names(tokens, 4), sampling, RequestOptions())
    return sequences(admit, arrival=request, max_tokens=60, block_size=4, eos_ids=(), seed=0)


def make_roster(*prompts: list[Sequence], rows: int = 4) -> Roster:
    roster = Roster(rows=rows, block_size=4, policy=fcfs)
    for made in prompts:
        roster.add(made)
    return roster


def offered(roster: Roster, budget: int = 100) -> list[int]:
    return [candidate.request for candidate in roster.candidates(budget)]


def run(roster: Roster, request: int, row: int, computed: int = 0) -> Sequence:
    return roster.open(Admission(RequestId(request), row, computed, 0, ()))


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
        roster.running.computed[0] = 5
        roster.let_children_wait(leader)
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
    first.tokens.extend([9, 8])
    assert roster.send_back(first) == 3
    candidate = roster.candidates(100)[0]
    assert (candidate.request, candidate.known) == (1, 8)
    assert candidate.names == chain_names(first.tokens.tobytes(), 4)


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
