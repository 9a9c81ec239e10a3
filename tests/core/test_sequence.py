"""One request's own arithmetic: limits, seeds, ends, names and what was reported of its prompt."""

from array import array

import pytest

from asyncpage.core.block_names import chain_names
from asyncpage.core.sampling import SamplingParams
from asyncpage.core.sequence import Sequence, sequences
from asyncpage.messages import Admit, RequestId, RequestOptions


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


@pytest.mark.parametrize(("reported", "may_read"), [(1, False), (19, False), (20, True)])
def test_the_cache_is_read_only_when_nothing_of_the_prompt_is_left_to_report(reported: int, may_read: bool) -> None:
    sequence = make(prompt=20, prompt_logprobs=0)[0]
    sequence.reported = reported
    assert sequence.as_candidate().read_cache == may_read
    assert make(prompt=20)[0].as_candidate().read_cache
