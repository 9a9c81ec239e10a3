"""Columns of the running batch: what a step advances, and what its return settles."""

from array import array
from dataclasses import replace

import numpy as np
import pytest

from asyncpage.core.policy import fcfs
from asyncpage.core.prefix_chain import chain_names
from asyncpage.core.running import Running, columns_of
from asyncpage.core.sampling import SamplingParams
from asyncpage.core.sequence import Sequence, sequences
from asyncpage.errors import ProtocolError
from asyncpage.messages import Admission, Admit, Int32, Logprobs, PromptLogprobs, RequestId, RequestOptions, StepDone


def make(request: int, prompt: int = 6, most: int = 20) -> Sequence:
    tokens = array("i", range(prompt)).tobytes()
    sampling = SamplingParams(max_tokens=most)
    admit = Admit(RequestId(request), tokens, chain_names(tokens, 4), sampling, RequestOptions())
    return sequences(admit, arrival=request, max_tokens=60, block_size=4, eos_ids=(), seed=0)[0]


def ints(*numbers: int) -> Int32:
    return np.array(numbers, dtype=np.int32)


def start(running: Running, sequence: Sequence, row: int, computed: int = 0) -> Sequence:
    running.open(sequence, Admission(sequence.request, row, computed, 0, ()))
    return sequence


def done(number: int, tokens: dict[int, int], epoch: int = 1) -> StepDone:
    return StepDone(number, epoch, ints(*tokens), ints(*[1] * len(tokens)), ints(*tokens.values()))


def batch() -> Running:
    return Running(rows=4, block_size=4, policy=fcfs)


def test_rows_want_what_they_know_and_have_not_computed_in_policy_order() -> None:
    running = batch()
    start(running, make(2, prompt=9), 0)
    start(running, make(1, prompt=6), 3, computed=4)
    rows, wants = running.wants()
    assert (rows.tolist(), wants.tolist()) == ([3, 0], [2, 9])
    assert running.wants(most=5)[1].tolist() == [2, 5]
    assert running.free_rows(9) == (1, 2)


def test_a_row_that_catches_up_knows_one_token_more_before_anybody_has_seen_it() -> None:
    running = batch()
    start(running, make(1, prompt=6), 0)
    running.launch(1, 1, ints(0), ints(4))
    assert running.wants()[1].tolist() == [2]
    running.launch(2, 1, ints(0), ints(2))
    assert running.wants()[1].tolist() == [1]  # the token that step 2 will bring


def test_the_last_token_that_a_row_may_have_is_never_computed() -> None:
    running = batch()
    start(running, make(1, prompt=6, most=1), 0)
    running.launch(1, 1, ints(0), ints(6))
    assert running.wants()[0].tolist() == []


def test_tokens_reach_only_the_life_that_the_step_was_planned_for() -> None:
    running = batch()
    first, second = start(running, make(1), 0), start(running, make(2), 1)
    running.launch(1, 1, ints(0, 1), ints(6, 6))
    running.close(first)
    late = start(running, make(3), 0)
    step = done(1, {0: 70, 1: 80})
    settled = running.settle(step)
    assert settled is not None
    assert [(piece.sequence, piece.at) for piece in settled.sampled] == [(second, 1)]
    assert (first.tokens[-1], second.tokens[-1], late.tokens[-1]) == (5, 80, 5)
    assert settled.progress == [(second, 6)]
    counts, tokens, _ = columns_of(settled.sampled, step)
    assert (counts.tolist(), tokens.tolist()) == ([1], [80])


def test_logprobs_are_cut_with_the_tokens_they_belong_to() -> None:
    running = batch()
    gone, kept = start(running, make(1), 0), start(running, make(2), 1)
    running.launch(1, 1, ints(0, 1), ints(6, 6))
    running.close(gone)
    columns = Logprobs(
        np.array([-1, -2], dtype=np.float32), ints(1, 2), np.array([[7], [8]], np.int32), np.zeros((2, 1), np.float32)
    )
    step = StepDone(1, 1, ints(0, 1), ints(1, 1), ints(7, 8), logprobs=columns)
    settled = running.settle(step)
    assert settled is not None
    _, _, logprobs = columns_of(settled.sampled, step)
    assert logprobs is not None
    assert (logprobs.token_logprobs.tolist(), logprobs.top_ids.tolist()) == ([-2.0], [[8]])
    assert kept.tokens[-1] == 8


def test_blocks_are_reported_once_when_they_are_full_of_accepted_tokens() -> None:
    running = batch()
    sequence = start(running, make(1, prompt=6), 0, computed=4)
    running.launch(1, 1, ints(0), ints(2))
    settled = running.settle(done(1, {0: 50}))
    assert settled is not None
    assert settled.filled == []  # six of eight tokens
    for number, token in ((2, 51), (3, 52)):
        running.launch(number, 1, ints(0), ints(1))
        settled = running.settle(done(number, {0: token}))
    assert settled is not None
    ((row, first, last, tokens),) = [(f.row, f.first, f.last, f.tokens) for f in settled.filled]
    assert (row, first, last) == (0, 1, 2)
    assert np.frombuffer(tokens, np.int32).tolist() == [4, 5, 50, 51]
    assert sequence.tokens.tolist() == [0, 1, 2, 3, 4, 5, 50, 51, 52]


def test_a_result_of_a_past_epoch_is_dropped_and_one_out_of_turn_is_an_error() -> None:
    running = batch()
    sequence = start(running, make(1), 0)
    running.launch(4, 2, ints(0), ints(6))
    assert running.settle(done(3, {0: 9}, epoch=1)) is None
    assert len(sequence.tokens) == 6
    with pytest.raises(ProtocolError, match="answered step 5, step 4 was awaited"):
        running.settle(done(5, {0: 9}, epoch=2))


def test_the_unreturned_are_the_living_with_the_first_count_they_were_to_reach() -> None:
    running = batch()
    gone = start(running, make(1), 0)
    start(running, make(2), 1)
    running.launch(1, 1, ints(0, 1), ints(6, 4))
    running.launch(2, 1, ints(0, 1), ints(1, 2))
    running.close(gone)
    assert running.unreturned() == {2: 4}
    assert running.unreturned(2) == {2: 6}
    assert running.unreturned(3) == {}


def test_what_was_told_of_a_prompt_is_remembered_over_a_preemption() -> None:
    running = batch()
    sequence = start(running, make(1, prompt=6), 0)
    told = []
    for number, (first, count) in enumerate(((1, 3), (1, 2), (3, 3)), start=1):
        nothing = np.zeros((count, 0), np.float32)
        columns = Logprobs(np.zeros(count, np.float32), ints(*[1] * count), nothing.astype(np.int32), nothing)
        running.launch(number, 1, ints(0), ints(2))
        found = PromptLogprobs(0, first, ints(*range(first, first + count)), columns)
        settled = running.settle(replace(done(number, {}), prompt_logprobs=(found,)))
        assert settled is not None
        assert settled.prompt_logprobs == [(sequence.request, found)]
        told.append(sequence.reported)
        running.close(sequence)
        start(running, sequence, 0)
    assert told == [4, 4, 6]
