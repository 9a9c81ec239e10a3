"""Columns of the running batch: what a step advances, and what its return settles."""

from array import array
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core.block_names import chain_names
from asyncpage.core.policy import Fcfs, VictimPolicy, last_admitted, least_computed, lowest_priority
from asyncpage.core.returned import Returned
from asyncpage.core.running import Running
from asyncpage.core.sampling import SamplingParams
from asyncpage.core.sequence import Sequence, sequences
from asyncpage.core.suspects import progress, unreturned
from asyncpage.errors import ProtocolError
from asyncpage.messages import Admission, Admit, Int32, Logprobs, PromptLogprobs, RequestId, RequestOptions, StepDone

END = 2
ROWS = 4


def make(
    request: int, prompt: int = 6, most: int = 20, *, use_cache: bool = True, priority: int = 0, **more: object
) -> Sequence:
    tokens = array("i", range(prompt)).tobytes()
    sampling = SamplingParams(max_tokens=most, **more)  # type: ignore[arg-type]
    options = RequestOptions(use_cache=use_cache, priority=priority)
    admit = Admit(RequestId(request), tokens, chain_names(tokens, 4) if use_cache else (), sampling, options)
    return sequences(admit, arrival=request, max_tokens=60, block_size=4, eos_ids=(END,), seed=0)[0]


def ints(*numbers: int) -> Int32:
    return np.array(numbers, dtype=np.int32)


def start(running: Running, sequence: Sequence, row: int, computed: int = 0) -> Sequence:
    running.open(sequence, Admission(sequence.request, row, computed, 0, ()))
    return sequence


def done(number: int, tokens: dict[int, int | Items[int]], epoch: int = 1, *, drafted: Items[int] = ()) -> StepDone:
    """Tokens by row; several where drafts stood, of which each row `drafted` so many."""
    own = [[one] if isinstance(one, int) else list(one) for one in tokens.values()]
    ids = ints(*(t for part in own for t in part))
    return StepDone(number, epoch, ints(*tokens), ints(*map(len, own)), ids, drafted=ints(*drafted))


def logprobs(values: Items[int]) -> Logprobs:
    """One entry a token, that tells which token it belongs to."""
    column = np.array(values, dtype=np.float32)
    return Logprobs(-column, ints(*values), ints(*values).reshape(-1, 1), column.reshape(-1, 1))


def batch(victims: VictimPolicy = last_admitted) -> Running:
    return Running(rows=ROWS, block_size=4, max_tokens=60, vocab_size=97, policy=Fcfs(), victims=victims)


def launch(running: Running, number: int, counts: dict[int, int], epoch: int = 1, *, has_drafts: bool = False) -> None:
    running.launch(number, epoch, ints(*counts), ints(*counts.values()), has_drafts=has_drafts)


def settle(running: Running, step: StepDone) -> Returned:
    returned = running.settle(step)
    assert returned is not None
    return returned


def told(returned: Returned) -> dict[RequestId, list[int]]:
    """Tokens by request."""
    ids = iter(returned.tokens.tolist())
    pairs = zip(returned.requests, returned.counts.tolist(), strict=True)
    tokens = {request: [next(ids) for _ in range(count)] for request, count in pairs}
    assert next(ids, None) is None
    return tokens


def tokens_of(running: Running, sequence: Sequence) -> list[int]:
    """Every token of a running sequence, by taking it out of its row."""
    running.close(sequence)
    return sequence.tokens.tolist()


def filled(running: Running) -> list[tuple[int, int, list[int]]]:
    blocks, contents = running.take_full()
    pairs = zip(blocks.tolist(), contents.tolist(), strict=True)
    return [(row, index, tokens) for (row, index), tokens in pairs]


# --- planning a step --------------------------------------------------------------------------------------------------


def test_rows_want_what_they_know_and_have_not_computed_in_policy_order() -> None:
    running = batch()
    start(running, make(2, prompt=9), 0)
    start(running, make(1, prompt=6), 3, computed=4)
    assert running.order().tolist() == [3, 0]
    assert running.wants()[0].tolist() == [9, 0, 0, 2]
    assert running.wants(most=5)[0].tolist() == [5, 0, 0, 2]
    assert running.free_rows(9) == (1, 2)
    assert running.free_rows(1) == (1,)
    assert [sequence.request for sequence in running.occupants()] == [1, 2]


def test_a_row_that_catches_up_knows_one_token_more_before_anybody_has_seen_it() -> None:
    running = batch()
    start(running, make(1, prompt=6), 0)
    launch(running, 1, {0: 4})
    assert running.wants()[0].tolist() == [2, 0, 0, 0]
    launch(running, 2, {0: 2})
    assert running.wants()[0].tolist() == [1, 0, 0, 0]  # the token that step 2 will bring


def test_the_last_token_that_a_row_may_have_is_never_computed() -> None:
    running = batch()
    start(running, make(1, prompt=6, most=1), 0)
    launch(running, 1, {0: 6})
    assert running.wants()[0].tolist() == [0, 0, 0, 0]


def test_a_prompt_that_wants_no_answer_is_silent_once_all_but_its_last_token_are_back() -> None:
    running = batch()
    sequence = start(running, make(1, prompt=6, most=0, prompt_logprobs=0), 0)
    assert running.wants()[0].tolist() == [5, 0, 0, 0]
    launch(running, 1, {0: 3})
    launch(running, 2, {0: 2})
    assert settle(running, done(1, {})).silent == []
    assert running.wants()[0].tolist() == [0, 0, 0, 0]
    assert settle(running, done(2, {})).silent == [sequence]


VICTIMS = [(last_admitted, [1, 3, 0]), (lowest_priority, [0, 1, 3]), (least_computed, [3, 1, 0])]


@pytest.mark.parametrize(("policy", "rows"), VICTIMS, ids=lambda one: getattr(one, "__name__", ""))
def test_victims_are_the_rows_that_live_by_admission_priority_or_work_lost(
    policy: VictimPolicy, rows: list[int]
) -> None:
    running = batch(policy)
    start(running, make(3, priority=5), 0, computed=4)
    start(running, make(1), 3, computed=1)
    gone = start(running, make(4, priority=9), 2)
    start(running, make(2), 1, computed=2)
    running.close(gone)
    assert running.victims().tolist() == rows


# --- a step is back ---------------------------------------------------------------------------------------------------


def test_tokens_reach_only_the_life_that_the_step_was_planned_for() -> None:
    running = batch()
    first, second = start(running, make(1), 0), start(running, make(2), 1)
    launch(running, 1, {0: 6, 1: 6})
    running.close(first)
    late = start(running, make(3), 0)
    returned = settle(running, done(1, {0: 70, 1: 80}))
    assert told(returned) == {2: [80]}
    assert progress(running, returned.record) == {2: 6}
    assert [tokens_of(running, one)[-1] for one in (second, late)] == [80, 5]
    assert first.tokens.tolist() == [0, 1, 2, 3, 4, 5]


def test_with_two_steps_in_flight_the_second_brings_nothing_to_a_row_that_the_first_ended() -> None:
    running = batch()
    first, second = start(running, make(1, most=1), 0), start(running, make(2), 1)
    launch(running, 1, {0: 6, 1: 6})
    launch(running, 2, {1: 1})
    returned = settle(running, done(1, {0: 70, 1: 80}))
    assert [(over.sequence, over.stop_token) for over in returned.over] == [(first, None)]
    assert told(returned) == {1: [70], 2: [80]}
    running.close(first)
    late = start(running, make(3), 0)
    launch(running, 3, {0: 6, 1: 1})
    assert told(settle(running, done(2, {1: 81}))) == {2: [81]}
    assert told(settle(running, done(3, {0: 90, 1: 82}))) == {3: [90], 2: [82]}
    assert tokens_of(running, second)[6:] == [80, 81, 82]
    assert tokens_of(running, late)[6:] == [90]
    assert (first.computed, second.computed) == (6, 8)


def test_an_end_token_ends_only_those_whose_end_it_is_and_the_limit_ends_without_one() -> None:
    running = batch()
    ends = start(running, make(1), 0)
    ignores = start(running, make(2, ignore_eos=True), 1)
    own = start(running, make(3, stop_token_ids=(40, 200)), 2)  # 200: no such token in this vocabulary
    short = start(running, make(4, most=1), 3)
    launch(running, 1, {0: 6, 1: 6, 2: 6, 3: 6})
    returned = settle(running, done(1, {0: END, 1: END, 2: 40, 3: 5}))
    assert [(over.sequence, over.stop_token) for over in returned.over] == [(ends, END), (own, 40), (short, None)]
    assert told(returned)[RequestId(2)] == [END]
    for sequence in (ends, own, short, ignores):
        running.close(sequence)
    start(running, make(5, ignore_eos=True), 0)
    launch(running, 2, {0: 6})
    assert settle(running, done(2, {0: END})).over == []


def test_logprobs_are_cut_with_the_tokens_they_belong_to() -> None:
    running = batch()
    gone, kept = start(running, make(1), 0), start(running, make(2), 1)
    launch(running, 1, {0: 6, 1: 6})
    running.close(gone)
    returned = settle(running, replace(done(1, {0: 7, 1: 8}), logprobs=logprobs([7, 8])))
    assert returned.logprobs is not None
    assert told(returned) == {2: [8]}
    assert returned.logprobs.token_logprobs.tolist() == [-8.0]
    assert returned.logprobs.ranks.tolist() == [8]
    assert (returned.logprobs.top_ids.tolist(), returned.logprobs.top_logprobs.tolist()) == ([[8]], [[8.0]])
    assert tokens_of(running, kept)[-1] == 8


def test_drafts_are_cut_behind_an_end_token_and_at_the_limit_and_their_logprobs_with_them() -> None:
    running = batch()
    ended, limited, on = start(running, make(1), 0), start(running, make(2, most=2), 1), start(running, make(3), 2)
    gone = start(running, make(4), 3)
    launch(running, 1, {0: 6 + 2, 1: 6 + 2, 2: 6 + 1, 3: 6 + 1}, has_drafts=True)
    running.close(gone)
    step = done(1, {0: [50, END, 51], 1: [60, 61, 62], 2: [70, 71], 3: [80, 81]}, drafted=[2, 2, 1, 1])
    returned = settle(running, replace(step, logprobs=logprobs(step.tokens.tolist())))
    assert told(returned) == {1: [50, END], 2: [60, 61], 3: [70, 71]}
    assert returned.drafted.tolist() == [2, 2, 1]
    assert returned.logprobs is not None
    assert returned.logprobs.ranks.tolist() == returned.tokens.tolist()
    assert [(over.sequence, over.stop_token) for over in returned.over] == [(ended, END), (limited, None)]
    assert running.wants()[0].tolist()[2] == 1
    assert tokens_of(running, on)[6:] == [70, 71]
    assert tokens_of(running, ended)[6:] == [50, END]
    assert ended.computed == 7  # the end token was never computed, whatever the executor has


def test_a_row_whose_drafts_fell_is_as_many_behind_also_in_steps_that_left_since() -> None:
    running = batch()
    first, second = start(running, make(1), 0), start(running, make(2), 1)
    launch(running, 1, {0: 6, 1: 6})
    launch(running, 2, {0: 1 + 3, 1: 1}, has_drafts=True)
    launch(running, 3, {0: 1 + 2, 1: 1 + 2}, has_drafts=True)
    assert running.wants()[0].tolist() == [1, 1, 0, 0]
    assert [record.most_behind for record in running.in_flight] == [1, 4, 3]
    settle(running, done(1, {0: 50, 1: 60}))
    settle(running, done(2, {0: [51, 52], 1: 61}, drafted=[3, 0]))
    assert running.computed.tolist()[:2] == [6 + 2 + 3, 6 + 1 + 3]
    settle(running, done(3, {0: [53], 1: [62, 63, 64]}, drafted=[2, 2]))
    assert running.computed.tolist()[:2] == [9, 10]
    assert running.wants()[0].tolist() == [1, 1, 0, 0]
    assert tokens_of(running, first)[6:] == [50, 51, 52, 53]
    assert tokens_of(running, second)[6:] == [60, 61, 62, 63, 64]


def test_a_row_that_tried_fewer_drafts_or_could_not_sample_is_behind_as_if_they_had_fallen() -> None:
    running = batch()
    start(running, make(1), 0)
    start(running, make(2), 1)
    launch(running, 1, {0: 6, 1: 6})
    settle(running, done(1, {0: 50, 1: 60}))
    launch(running, 2, {0: 1 + 3, 1: 1 + 3}, has_drafts=True)
    settle(running, replace(done(2, {0: [51, 52]}, drafted=[1]), late=(1,)))
    assert running.computed.tolist()[:2] == [8, 6]
    assert running.wants()[0].tolist() == [1, 1, 0, 0]


def test_no_draft_comes_behind_the_last_token_that_a_row_may_compute_or_beside_a_prompt() -> None:
    running = batch()
    start(running, make(1, most=5), 0)
    start(running, make(2, prompt=9), 1)
    start(running, make(3, most=1), 2)
    launch(running, 1, {0: 6, 1: 4, 2: 6})
    settle(running, done(1, {0: 50, 2: 70}))
    # Of the eleven tokens that the first may have it computes ten, and knows seven; the third has all it may have.
    assert running.room_for_drafts(running.wants()[0]).tolist() == [3, 0, 0, 0]


@pytest.mark.parametrize(
    "wrong", [done(1, {0: []}), done(1, {0: [50, 51]}), done(1, {0: [5, 6]}, drafted=[0]), done(1, {0: 5}, drafted=[3])]
)
def test_a_step_that_brings_more_or_fewer_tokens_than_it_was_to_try_is_an_error(wrong: StepDone) -> None:
    for drafts in (0, 2):
        running = batch()
        start(running, make(1), 0)
        launch(running, 1, {0: 6 + drafts}, has_drafts=True)
        with pytest.raises(ProtocolError, match="more or fewer tokens"):
            running.settle(wrong)


def test_a_row_that_failed_alone_is_told_only_if_it_still_lives() -> None:
    running = batch()
    gone, broken = start(running, make(1), 0), start(running, make(2), 1)
    launch(running, 1, {0: 6, 1: 6})
    running.close(gone)
    start(running, make(3), 0)
    returned = settle(running, replace(done(1, {}), failed=((0, "out of range"), (1, "out of range"))))
    assert returned.failed == [(broken, "out of range")]


def test_a_result_of_a_past_epoch_is_dropped_and_one_out_of_turn_is_an_error() -> None:
    running = batch()
    sequence = start(running, make(1), 0)
    launch(running, 4, {0: 6}, epoch=2)
    assert running.settle(done(3, {0: 9}, epoch=1)) is None
    assert tokens_of(running, sequence) == list(range(sequence.prompt_tokens))
    with pytest.raises(ProtocolError, match="answered step 5, step 4 was awaited"):
        running.settle(done(5, {0: 9}, epoch=2))


def test_the_unreturned_are_the_living_with_the_first_count_they_were_to_reach() -> None:
    running = batch()
    gone = start(running, make(1), 0)
    start(running, make(2), 1)
    launch(running, 1, {0: 6, 1: 4})
    launch(running, 2, {0: 1, 1: 2})
    running.close(gone)
    assert unreturned(running) == {2: 4}
    assert unreturned(running, 2) == {2: 6}
    assert unreturned(running, 3) == {}


def test_what_was_told_of_a_prompt_is_remembered_over_a_preemption() -> None:
    running = batch()
    sequence = start(running, make(1, prompt=6), 0)
    reported = []
    for number, (first, count) in enumerate(((1, 3), (1, 2), (3, 3)), start=1):
        launch(running, number, {0: 2})
        found = PromptLogprobs(0, first, ints(*range(first, first + count)), logprobs(range(count)))
        returned = settle(running, replace(done(number, {}), prompt_logprobs=(found,)))
        assert returned.prompt_logprobs == [(sequence.request, found)]
        reported.append(sequence.reported)
        running.close(sequence)
        start(running, sequence, 0)
    assert reported == [4, 4, 6]


def test_the_requests_of_the_same_rows_are_the_very_same_tuple_until_somebody_comes_or_goes() -> None:
    running = batch()
    start(running, make(1), 0)
    second = start(running, make(2), 1)
    launch(running, 1, {0: 6, 1: 6})
    rows = ints(0, 1)
    tuples = []
    for number in (1, 2):
        step = replace(done(number, {0: 50, 1: 51}), rows=rows)
        tuples.append(settle(running, step).requests)
        launch(running, number + 1, {0: 1, 1: 1})
    assert tuples[0] == (1, 2)
    assert tuples[1] is tuples[0]
    running.close(second)
    start(running, make(3), 1)
    settle(running, replace(done(3, {0: 50, 1: 51}), rows=rows))
    launch(running, 4, {0: 1, 1: 6})
    assert settle(running, replace(done(4, {0: 50, 1: 51}), rows=rows)).requests == (1, 3)


# --- full blocks ------------------------------------------------------------------------------------------------------


def test_blocks_are_reported_once_when_they_are_full_of_accepted_tokens() -> None:
    running = batch()
    sequence = start(running, make(1, prompt=6), 0, computed=4)
    launch(running, 1, {0: 2})
    settle(running, done(1, {0: 50}))
    assert filled(running) == []  # six of eight tokens
    reports = []
    for number, token in ((2, 51), (3, 52), (4, 53)):
        launch(running, number, {0: 1})
        settle(running, done(number, {0: token}))
        reports.append(filled(running))
    assert reports == [[], [(0, 1, [4, 5, 50, 51])], []]
    assert tokens_of(running, sequence) == [0, 1, 2, 3, 4, 5, 50, 51, 52, 53]


def test_several_blocks_of_several_rows_are_reported_row_by_row_in_order() -> None:
    running = batch()
    start(running, make(1, prompt=13), 3)
    start(running, make(2, prompt=9), 0, computed=4)
    start(running, make(3, prompt=9, use_cache=False), 1)
    launch(running, 1, {0: 5, 1: 9, 3: 13})
    settle(running, done(1, {0: 50, 1: 51, 3: 52}))
    report = filled(running)
    prompt = list(range(13))
    assert report == [(0, 1, prompt[4:8]), (3, 0, prompt[:4]), (3, 1, prompt[4:8]), (3, 2, prompt[8:12])]


def test_with_two_steps_in_flight_only_what_is_back_is_reported_as_full() -> None:
    running = batch()
    start(running, make(1, prompt=8), 0)
    launch(running, 1, {0: 4})
    launch(running, 2, {0: 4})
    settle(running, done(1, {}))
    assert filled(running) == [(0, 0, [0, 1, 2, 3])]
    settle(running, done(2, {0: 50}))
    assert filled(running) == [(0, 1, [4, 5, 6, 7])]


def test_a_block_that_fills_when_its_row_has_gone_is_not_reported_for_who_lives_there_now() -> None:
    running = batch()
    gone = start(running, make(1, prompt=8), 0)
    launch(running, 1, {0: 8})
    running.close(gone)
    start(running, make(2, prompt=8), 0)
    settle(running, done(1, {0: 50}))
    assert filled(running) == []


def test_a_block_that_a_row_filled_before_it_ended_is_reported_with_its_tokens() -> None:
    running = batch()
    ended = start(running, make(1, prompt=8), 0)
    launch(running, 1, {0: 8})
    settle(running, done(1, {0: 50}))
    assert running.tail(ended, 60) == b""
    running.close(ended)
    assert filled(running) == [(0, 0, [0, 1, 2, 3]), (0, 1, [4, 5, 6, 7])]


def test_the_tail_is_what_is_computed_behind_the_last_full_block_and_counts() -> None:
    running = batch()
    sequence = start(running, make(1, prompt=6), 0)

    def tail(most: int) -> list[int]:
        return np.frombuffer(running.tail(sequence, most), dtype=np.int32).tolist()

    assert tail(60) == []
    launch(running, 1, {0: 6})
    assert tail(60) == []  # nothing is back
    settle(running, done(1, {0: 50}))
    assert tail(60) == [4, 5]  # 50 is known, not computed
    launch(running, 2, {0: 1})
    settle(running, done(2, {0: 51}))
    assert tail(60) == [4, 5, 50]
    assert tail(6) == [4, 5]  # a stop string before 50
    assert tail(3) == []
    launch(running, 3, {0: 1})
    settle(running, done(3, {0: 52}))
    assert tail(60) == []  # the block is full
    refusing = start(running, make(2, prompt=6, use_cache=False), 1)
    launch(running, 4, {1: 6})
    settle(running, done(4, {1: 50}))
    assert running.tail(refusing, 60) == b""


# --- any history ------------------------------------------------------------------------------------------------------

MOVES = st.lists(
    st.one_of(
        st.tuples(
            st.just("open"), st.integers(0, ROWS - 1), st.integers(1, 14), st.integers(0, 13), st.integers(1, 40)
        ),
        st.tuples(st.just("close"), st.integers(0, ROWS - 1)),
        st.tuples(st.just("launch"), st.integers(1, 6), st.just(0)),
        st.tuples(st.just("launch"), st.just(60), st.integers(0, 5)),
        st.tuples(st.just("launch"), st.just(60), st.just(0)),
        st.tuples(st.just("settle"), st.booleans(), st.integers(0, 5)),
        st.tuples(st.just("settle"), st.just(False), st.integers(0, 5)),
        st.tuples(st.just("late")),
        st.tuples(st.just("report")),
    ),
    max_size=120,
)


@dataclass
class Flying:
    """A step in flight: rows that sample, and of each row the request, its computed tokens after it, and its drafts."""

    number: int
    samples: set[int]
    ends: dict[int, tuple[RequestId, int]]
    drafts: dict[int, int]


class History:
    """A running batch beside what is known of it: whose tokens, and which of their blocks were reported.

    What a step samples is numbered, so that every token says from which step and row it is.
    """

    def __init__(self) -> None:
        self.running = batch()
        self.living: dict[int, Sequence] = {}  # by row
        self.tokens: dict[RequestId, list[int]] = {}
        self.owners: dict[int, RequestId] = {}  # by row, also after its life
        self.first: dict[RequestId, int] = {}  # the first block to report
        self.reported: dict[RequestId, list[list[int]]] = {}
        self.computed: dict[RequestId, int] = {}  # by steps that are back
        self.flying: list[Flying] = []
        self.number = 0
        self.alike = 0  # further steps like the last one that may leave

    def open(self, row: int, sequence: Sequence, prompt: int, computed: int) -> None:
        self.report()  # a row is never opened again before the KV manager has been told
        start(self.running, sequence, row, computed)
        request = self.owners[row] = sequence.request
        self.living[row], self.tokens[request] = sequence, list(range(prompt))
        self.first[request], self.reported[request] = computed // 4, []
        self.computed[request] = computed
        self.alike = 0

    def close(self, row: int) -> None:
        sequence = self.living.pop(row)
        assert self.running.close(sequence) == row
        assert sequence.tokens.tolist() == self.tokens[sequence.request]
        assert sequence.computed == self.computed[sequence.request]
        self.alike = 0

    def launch(self, most: int, drafts: int = 0) -> None:
        self.number += 1
        known = {row: len(self.tokens[one.request]) for row, one in self.living.items()}
        begun = {row: self.computed[one.request] for row, one in self.living.items()}
        for step in self.flying:
            for row, (request, end) in step.ends.items():
                if row in self.living and self.living[row].request == request:
                    known[row] += (1 + step.drafts[row]) if row in step.samples else 0
                    begun[row] = end
        wants = {row: min(known[row], one.limit - 1) - begun[row] for row, one in self.living.items()}
        asked = {row: min(want, most) for row, want in sorted(wants.items()) if want}
        tried = dict.fromkeys(asked, 0)
        if self.alike:
            self.alike -= 1
            rows, counts = self.running.launch_again(self.number, 1)
        else:
            column, total = self.running.wants(most)
            rooms = self.running.room_for_drafts(column)
            for row, want in asked.items():
                most_drafts = self.living[row].limit - 1 - known[row] if want == known[row] - begun[row] == 1 else 0
                assert rooms[row] == most_drafts
                tried[row] = min(drafts, most_drafts)
                column = column.copy()
                column[row] += tried[row]
            rows = np.flatnonzero(column).astype(np.int32)
            counts = column[rows]
            self.alike = 0 if any(tried.values()) else self.running.equal_steps(column, total) - 1
            self.running.launch(
                self.number, 1, rows, counts, is_first_of_many=self.alike > 0, has_drafts=any(tried.values())
            )
        assert dict(zip(rows.tolist(), counts.tolist(), strict=True)) == {row: asked[row] + tried[row] for row in asked}
        self.flying.append(
            Flying(
                number=self.number,
                samples={row for row, count in asked.items() if begun[row] + count == known[row]},
                ends={row: (self.living[row].request, begun[row] + asked[row] + tried[row]) for row in asked},
                drafts=tried,
            )
        )

    def settle(self, *, ends_one: bool, stand: int = 0, is_one_late: bool = False) -> None:
        """Of each row's drafts as many stand as `stand` says; an end comes in the middle of them."""
        flown = self.flying.pop(0)
        late = {min(flown.samples)} if is_one_late and flown.samples else set()
        sampled = {
            row: [10 + (flown.number * ROWS + row + 7 * at) % 80 for at in range(1 + min(stand, flown.drafts[row]))]
            for row in sorted(flown.samples - late)
        }
        if ends_one and sampled:
            tokens = sampled[max(sampled)]
            tokens[len(tokens) // 2] = END
        drafted = [flown.drafts[row] for row in sampled]
        step = done(flown.number, dict(sampled), drafted=drafted if any(drafted) else ())
        returned = settle(self.running, replace(step, late=tuple(late)))
        here = {row: one.request for row, one in self.living.items()}
        alive = {row: tokens for row, tokens in sampled.items() if here.get(row) == flown.ends[row][0]}
        alive = {row: tokens[: tokens.index(END) + 1] if END in tokens else tokens for row, tokens in alive.items()}
        assert told(returned) == {here[row]: tokens for row, tokens in alive.items()}
        for row in flown.samples:
            behind = 1 + flown.drafts[row] - len(alive.get(row, () if row in late else [0] * (1 + flown.drafts[row])))
            request = flown.ends[row][0]
            for other in (flown, *self.flying):
                if other.ends.get(row, (None, 0))[0] == request:
                    other.ends[row] = request, other.ends[row][1] - behind
            if behind:
                self.alike = 0
        for row, (request, end) in flown.ends.items():
            if here.get(row) == request:
                self.computed[request] = end
        over = set()
        for row, tokens in alive.items():
            request = here[row]
            self.tokens[request] += tokens
            if tokens[-1] == END or len(self.tokens[request]) == self.living[row].limit:
                over.add((row, END if tokens[-1] == END else None))
        assert {(one.sequence.row, one.stop_token) for one in returned.over} == over
        for row, _ in over:
            self.close(row)

    def report(self) -> None:
        for row, index, tokens in filled(self.running):
            request = self.owners[row]
            assert index == self.first[request] + len(self.reported[request])
            self.reported[request].append(tokens)
        for request, blocks in self.reported.items():
            assert self.first[request] + len(blocks) == max(self.first[request], self.computed[request] // 4)
            flat = [token for block in blocks for token in block]
            assert flat == self.tokens[request][4 * self.first[request] :][: len(flat)]


@settings(max_examples=300, deadline=None)
@given(moves=MOVES)
def test_any_history_brings_each_sequence_its_own_tokens_and_each_full_block_once(
    moves: list[tuple[object, ...]],
) -> None:
    history = History()
    for request, move in enumerate(moves):
        match move:
            case ("open", int(row), int(prompt), int(computed), int(most)) if row not in history.living:
                history.open(row, make(request, prompt=prompt, most=most), prompt, min(computed, prompt - 1))
            case ("close", int(row)) if row in history.living:
                history.close(row)
            case ("launch", int(most), int(drafts)) if len(history.flying) < 2:
                history.launch(most, drafts)
            case ("settle", bool(ends_one), int(stand)) if history.flying:
                history.settle(ends_one=ends_one, stand=stand)
            case ("late",) if history.flying:
                history.settle(ends_one=False, is_one_late=True)
            case ("report",):
                history.report()
    history.report()
    for row in list(history.living):
        history.close(row)
    assert len(history.running) == 0


def test_equal_steps_end_before_the_first_limit_and_are_none_while_anybody_computes_a_prompt() -> None:
    running = batch()
    start(running, make(1, prompt=6, most=9), 0)
    start(running, make(2, prompt=6, most=20), 1)
    assert running.equal_steps(*running.wants()) == 1  # prompts
    launch(running, 1, {0: 6, 1: 6})
    settle(running, done(1, {0: 50, 1: 51}))
    # The first may have 15 tokens, so it computes 14, of which 6 are done; the last of those 8 steps ends it.
    assert running.equal_steps(*running.wants()) == 7
    start(running, make(3, prompt=6), 2)
    assert running.equal_steps(*running.wants()) == 1


def test_one_token_of_a_prompt_is_not_a_step_that_others_could_follow() -> None:
    running = batch()
    start(running, make(1, prompt=6), 0)
    assert running.equal_steps(*running.wants(1)) == 1


def test_no_step_like_the_last_follows_one_that_brought_less_than_planned_or_a_row_that_came_or_went() -> None:
    def decoding() -> Running:
        running = batch()
        start(running, make(1), 0)
        launch(running, 1, {0: 6})
        settle(running, done(1, {0: 50}))
        running.launch(2, 1, ints(0), ints(1), is_first_of_many=True)
        assert running.may_go_on
        return running

    running = decoding()
    settle(running, replace(done(2, {}), late=(0,)))
    assert not running.may_go_on
    running = decoding()
    start(running, make(2), 1)
    assert not running.may_go_on
    running = decoding()
    running.close(running.occupant(0))
    assert not running.may_go_on
