"""Sampling flags: what is given is checked, what is not given stays the model's."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import pytest

from asyncpage.cli.sampling import chosen_sampling, declare_sampling, sampling_over
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import UsageError


def choose(argv: Sequence[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    declare_sampling(parser)
    return chosen_sampling(parser.parse_args(argv))


def test_nothing_given_chooses_nothing() -> None:
    assert choose([]) == {}
    assert sampling_over({"temperature": 0.6}, {}) == SamplingParams(temperature=0.6)


def test_what_is_given_wins_over_the_models_default() -> None:
    chosen = choose(["--temperature", "0", "--top-k", "5", "--stop", "a", "--stop", "b", "--ignore-eos"])
    assert sampling_over({"temperature": 0.6, "top_p": 0.9}, chosen) == SamplingParams(
        temperature=0.0, top_p=0.9, top_k=5, stop=("a", "b"), ignore_eos=True
    )


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        (["--top-p", "1.5"], "--top-p"),
        (["--temperature", "nan"], "--temperature"),
        (["--min-tokens", "9", "--max-tokens", "3"], "--min-tokens"),
        (["--stop", ""], "--stop"),
    ],
)
def test_what_cannot_work_is_refused_by_its_flag(argv: list[str], flag: str) -> None:
    with pytest.raises(UsageError, match=f"^{flag}: "):
        choose(argv)
