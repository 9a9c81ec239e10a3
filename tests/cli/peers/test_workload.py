"""The workloads of a comparison: prompts of exactly their tokens and nobody's before, and what samples say."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncpage.cli.latency import Sample
from asyncpage.cli.peers.workload import (
    C8,
    C32,
    CHOICES,
    PREFILL,
    SHARED,
    SINGLE,
    STAGGERED,
    ExactText,
    Workload,
    WorkloadFailed,
    check,
    figures,
    prompts,
)
from asyncpage.text.tokenizer import Tokenizer
from asyncpage.text.vocabulary_source import load_vocabulary

ALL = (SINGLE, PREFILL, C8, C32, SHARED, STAGGERED)


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer(load_vocabulary(demo_model))


def answer(workload: Workload, *arrivals: float, cached: int = 0) -> Sample:
    tokens = workload.new_tokens
    return Sample(0.0, list(arrivals), arrivals[-1], workload.prompt_tokens, tokens, cached)


@pytest.mark.parametrize("workload", ALL, ids=lambda workload: workload.name)
def test_every_prompt_has_exactly_its_tokens(tokenizer: Tokenizer, workload: Workload) -> None:
    drawn = prompts(workload, ExactText(tokenizer), "1")
    assert len(drawn) == workload.requests
    ids = [tokenizer.encode(text, add_special=False) for text, _ in drawn]
    assert {len(one) for one in ids} == {workload.prompt_tokens}
    assert len(set(map(tuple, ids))) == workload.requests
    shared = {tuple(one[: workload.shared_tokens]) for one in ids}
    assert len(shared) == 1


def test_no_run_has_the_prompts_of_another_and_every_server_has_the_same(tokenizer: Tokenizer) -> None:
    text = ExactText(tokenizer)
    first, again, other = (prompts(SHARED, text, seed) for seed in ("run 1", "run 1", "run 2"))
    assert first == again
    begins = [tokenizer.encode(drawn[0][0], add_special=False)[:16] for drawn in (first, other)]
    assert begins[0] != begins[1]


def test_the_workloads_are_those_of_the_table() -> None:
    shape = {one.name: (one.requests, one.in_flight, one.prompt_tokens, one.new_tokens) for one in ALL}
    assert shape["c8"] == shape["staggered"] == (16, 8, 128, 64)
    assert shape["c32"] == (32, 32, 128, 64)
    assert shape["shared"] == (32, 8, 768 + 32, 16)
    assert shape["single"][1:] == (1, 32, 128)
    assert shape["prefill"][1:] == (1, 1024, 1)
    assert {one for chosen in CHOICES.values() for one in chosen} == set(ALL)


def test_figures_by_hand() -> None:
    # 128 tokens: 127 after the first, in 2, 1 and 4 seconds.
    single = [answer(SINGLE, 1.0, 1.0 + seconds) for seconds in (2.0, 1.0, 4.0)]
    assert figures(SINGLE, single, 9.0) == {"single": pytest.approx(63.5)}
    assert figures(PREFILL, [answer(PREFILL, 2.0)], 2.0) == {"prefill": pytest.approx(512.0)}
    assert figures(SHARED, [answer(SHARED, 1.0)], 7.5) == {"shared": 7.5}
    # A hundred waits of 10 ms and one of 500: the 99th percentile of 101 is the hundredth.
    gaps = [0.01] * 100 + [0.5]
    arrivals = [sum(gaps[:at]) for at in range(len(gaps) + 1)]
    assert figures(STAGGERED, [answer(STAGGERED, *arrivals)], 1.0) == {"itl_staggered": pytest.approx(10.0)}
    found = figures(C8, [answer(C8, *arrivals)] * 16, 4.0)
    assert found == {"c8": pytest.approx(16 * 64 / 4.0), "itl_together": pytest.approx(10.0)}
    assert figures(C32, [answer(C32, *arrivals)] * 32, 4.0) == {"c32": pytest.approx(512.0)}


def test_a_first_token_without_text_is_timed_by_the_end_of_its_answer() -> None:
    silent = Sample(1.0, [], 3.0, 1024, 1)
    assert figures(PREFILL, [silent], 2.0) == {"prefill": pytest.approx(512.0)}


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (Sample(error="HTTP 500: no"), "HTTP 500"),
        (Sample(prompt_tokens=128, output_tokens=63), "63 tokens, 64 were asked for"),
        (Sample(prompt_tokens=130, output_tokens=64), "130 tokens in a prompt of 128"),
        (Sample(prompt_tokens=128, output_tokens=64, cached_tokens=16), "16 tokens of a new prompt"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_ends_the_comparison(sample: Sample, reason: str) -> None:
    with pytest.raises(WorkloadFailed, match=reason):
        check(C8, [sample])


def test_a_start_token_of_the_servers_own_and_a_shared_prefix_are_in_order() -> None:
    check(C8, [Sample(prompt_tokens=129, output_tokens=64, cached_tokens=2)])
    check(SHARED, [Sample(prompt_tokens=800, output_tokens=16, cached_tokens=768)])


def test_text_that_cannot_be_had_is_refused() -> None:
    class Pairs:
        """Every text has an even number of tokens."""

        def encode(self, text: str, add_special: bool) -> list[int]:
            return [0] * (2 * len(text.split()))

    with pytest.raises(WorkloadFailed, match="no text of 3 tokens"):
        prompts(Workload("odd", 1, 1, 3, 1), ExactText(Pairs()), "1")  # type: ignore[arg-type]
