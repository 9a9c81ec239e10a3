"""Made-up traces: how many requests, when they come, and which tokens they share."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from asyncpage.errors import UsageError
from asyncpage.simulation.synthetic import SHAPES, Arrivals, Shape, synthetic_trace
from asyncpage.simulation.trace import Session, Trace, Turn

PLAIN = Shape(input_tokens=10, output_tokens=4)
AT_ONCE = Arrivals()


def trace(
    shape: Shape = PLAIN, arrivals: Arrivals = AT_ONCE, *, requests: int = 100, seed: int = 1, most: int = 32768
) -> Trace:
    return synthetic_trace("made", shape, arrivals, requests=requests, seed=seed, end_id=2000, most_tokens=most)


def answered(session: Session) -> list[Turn]:
    """All the turns of a session whose answers count from 0."""
    turns = [next(session)]
    while not turns[-1].is_last:
        turns.append(session.send(np.arange(turns[-1].output_tokens, dtype=np.int32)))
    return turns


@pytest.mark.parametrize("name", SHAPES)
def test_a_trace_has_exactly_the_requests_asked_for_and_can_be_played_again(name: str) -> None:
    made = trace(SHAPES[name], Arrivals(5.0, 0.5), requests=137)
    first = [(arrival.at_s, answered(arrival.session)) for arrival in made.arrivals]
    again = [(arrival.at_s, answered(arrival.session)) for arrival in made.arrivals]
    assert sum(len(turns) for _, turns in first) == 137
    for (at_s, turns), (at_s_again, turns_again) in zip(first, again, strict=True):
        assert at_s == at_s_again
        for turn, other in zip(turns, turns_again, strict=True):
            assert np.array_equal(turn.prompt, other.prompt)
            assert (turn.output_tokens, turn.pause_s) == (other.output_tokens, other.pause_s)
    other_seed = next(iter(trace(SHAPES[name], Arrivals(5.0, 0.5), requests=137, seed=2).arrivals))
    assert not np.array_equal(next(other_seed.session).prompt, first[0][1][0].prompt)


def test_the_next_prompt_is_the_one_before_with_the_answer_that_was_really_given() -> None:
    shape = Shape(input_tokens=6, output_tokens=5, systems=1, system_tokens=20, turns=4.0, pause_s=2.0)
    sessions = [answered(arrival.session) for arrival in trace(shape, requests=60).arrivals]
    assert max(map(len, sessions)) > 4
    for turns in sessions:
        assert len(turns[0].prompt) == 26
        assert turns[0].pause_s == 0
        for before, turn in pairwise(turns):
            known = len(before.prompt)
            assert np.array_equal(turn.prompt[:known], before.prompt)
            assert turn.prompt[known : known + 5].tolist() == [0, 1, 2, 3, 4]
            assert len(turn.prompt) == known + 5 + 6
            assert turn.pause_s > 0
    assert len({turns[0].prompt[:20].tobytes() for turns in sessions}) == 1


def test_system_prompts_are_shared_among_as_many_groups_as_asked_for() -> None:
    shape = Shape(input_tokens=4, output_tokens=1, systems=5, system_tokens=30)
    prompts = [next(arrival.session).prompt for arrival in trace(shape, requests=300).arrivals]
    assert len({prompt[:30].tobytes() for prompt in prompts}) == 5
    assert len({prompt.tobytes() for prompt in prompts}) == 300


def test_lengths_spread_around_their_means() -> None:
    shape = Shape(input_tokens=100, output_tokens=50, spread=0.5)
    turns = [next(arrival.session) for arrival in trace(shape, requests=4000).arrivals]
    for mean, lengths in ((100, [len(turn.prompt) for turn in turns]), (50, [turn.output_tokens for turn in turns])):
        assert mean / 2 <= min(lengths) < 0.6 * mean
        assert 1.4 * mean < max(lengths) <= 1.5 * mean
        # A uniform distribution of width w has a standard deviation of w / sqrt(12).
        assert np.mean(lengths) == pytest.approx(mean, rel=0.02)
        assert np.std(lengths) == pytest.approx(mean / np.sqrt(12), rel=0.03)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_times_between_arrivals_have_the_rates_mean_and_the_gamma_distributions_variation(burstiness: float) -> None:
    made = trace(arrivals=Arrivals(20.0, burstiness), requests=20_000)
    gaps = np.diff([arrival.at_s for arrival in made.arrivals])
    assert np.mean(gaps) == pytest.approx(1 / 20, rel=0.03)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_a_session_ends_before_it_outgrows_the_context() -> None:
    shape = Shape(input_tokens=50, output_tokens=20, spread=0.5, turns=30.0)
    sessions = [answered(arrival.session) for arrival in trace(shape, requests=200, most=300).arrivals]
    lengths = [len(turns[-1].prompt) + turns[-1].output_tokens for turns in sessions]
    assert max(lengths) <= 300
    assert sum(map(len, sessions)) == 200
    with pytest.raises(UsageError, match="may take 105 tokens and the context is 100"):
        trace(shape, most=100)


@pytest.mark.parametrize(
    ("shape", "arrivals", "match"),
    [
        (Shape(0, 1), Arrivals(), "--input-tokens"),
        (Shape(1, 0), Arrivals(), "--output-tokens"),
        (Shape(1, 1, spread=1.0), Arrivals(), "--spread"),
        (Shape(1, 1, turns=0.5), Arrivals(), "--turns"),
        (Shape(1, 1, pause_s=-1.0), Arrivals(), "--pause"),
        (PLAIN, Arrivals(rate=0.0), "--request-rate"),
        (PLAIN, Arrivals(burstiness=0.0), "--burstiness"),
    ],
)
def test_what_cannot_be_is_refused_by_its_flag(shape: Shape, arrivals: Arrivals, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        trace(shape, arrivals)
