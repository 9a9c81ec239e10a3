"""One request's own arithmetic: limits, seeds, ends, names and what was reported of its prompt."""

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncpage.core.prefix_chain import chain_names
from asyncpage.core.sampling import SamplingParams
from asyncpage.core.sequence import Sequence, sequences
from asyncpage.messages import Admit, Logprobs, PromptLogprobs, RequestId, RequestOptions


def make(prompt: int = 6, request: int = 10, **sampling: object) -> list[Sequence]:
    tokens = array("i", range(prompt)).tobytes()
    admit = Admit(
        RequestId(request),
        tokens,
        chain_names(tokens, 4),
        SamplingParams(**sampling),
        RequestOptions(),  # type: ignore[arg-type]
    )
    return sequences(admit, arrival=0, max_tokens=100, block_size=4, eos_ids=(2,), seed=7)


def test_the_limit_is_the_prompt_and_its_answer_but_never_more_than_the_context() -> None:
    assert make(max_tokens=5)[0].limit == 11
    assert make(max_tokens=500)[0].limit == 100
    assert make()[0].limit == 100


def test_choices_draw_from_different_seeds_that_depend_on_the_request_alone() -> None:
    seeds = [sequence.seed for sequence in make(n=3, seed=1)]
    assert len(set(seeds)) == 3
    assert seeds == [sequence.seed for sequence in make(n=3, seed=1, request=99)]
    assert seeds[0] == make(n=1, seed=1)[0].seed
    assert make()[0].seed != make(request=11)[0].seed
    assert make()[0].seed == make()[0].seed


def test_end_tokens_are_the_models_and_the_requests_unless_ignored() -> None:
    assert make(stop_token_ids=(5, 2))[0].end_token_ids == (2, 5)
    assert make(stop_token_ids=(5,), ignore_eos=True)[0].end_token_ids == (5,)


def test_names_grow_with_accepted_tokens_as_if_they_had_been_the_prompt() -> None:
    sequence = make()[0]
    sequence.tokens.extend([9, 8, 7])
    sequence.extend_names(4)
    assert sequence.names == chain_names(sequence.tokens.tobytes(), 4)
    assert len(sequence.names) == 2


@given(st.lists(st.tuples(st.integers(1, 19), st.integers(1, 8)), max_size=12))
def test_each_prompt_position_is_reported_once_however_often_it_is_computed(pieces: list[tuple[int, int]]) -> None:
    sequence = make(prompt=20, prompt_logprobs=0)[0]
    heard: list[int] = []
    frontier = 1
    for start, count in pieces:
        start = min(start, frontier)  # a recomputation begins at or before what was reached
        end = min(20, start + count)
        frontier = max(frontier, end)
        size = end - start
        columns = Logprobs(
            np.arange(start, end, dtype=np.float32),
            np.ones(size, np.int32),
            np.zeros((size, 0), np.int32),
            np.zeros((size, 0), np.float32),
        )
        fresh = sequence.newly_reported(PromptLogprobs(0, start, np.arange(start, end, dtype=np.int32), columns))
        if fresh is not None:
            assert fresh.logprobs.token_logprobs.tolist() == fresh.tokens.tolist()
            assert fresh.start == fresh.tokens[0]
            heard += fresh.tokens.tolist()
    assert heard == list(range(1, frontier))
    assert sequence.as_candidate().read_cache == (frontier == 20)
