"""What is refused, by name, and what crosses the wire."""

import math
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import RequestError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 1.5),
        ("n", 0),
        ("n", 129),
        ("max_tokens", -1),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0.0),
        ("logprobs", 21),
        ("stop", ("",)),
        ("stop", ("x",) * 17),
        ("stop", ("x" * 1025,)),
        ("stop_token_ids", (50,)),
        ("stop_token_ids", (-1,)),
        ("allowed_token_ids", ()),
        ("allowed_token_ids", (99,)),
        ("logit_bias", ((1, 101.0),)),
        ("logit_bias", ((1, math.nan),)),
        ("logit_bias", ((50, 1.0),)),
        ("seed", 2**63),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as refused:
        replace(SamplingParams(), **{field: value}).check(vocab_size=50)
    assert refused.value.failure.status == 400
    assert refused.value.failure.param == field


def test_min_tokens_beyond_max_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="min_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4).check()


def test_defaults_and_extremes_are_fine() -> None:
    SamplingParams().check(10)
    SamplingParams(temperature=2.0, top_p=1e-9, n=128, seed=-(2**63), logprobs=20, stop=("x" * 1024,)).check(10)


def test_parameters_survive_the_wire_and_defaults_cost_nothing() -> None:
    params = SamplingParams(
        n=2,
        temperature=0.5,
        stop=("a", "b"),
        logit_bias=((1, 2.5), (3, -1.0)),
        allowed_token_ids=(1, 2),
        seed=-5,
        ignore_eos=True,
    )
    assert SamplingParams(**msgpack.unpackb(msgpack.packb(params.to_wire()), use_list=False)) == params
    assert SamplingParams().to_wire() == {}


@pytest.mark.parametrize(
    ("sampling", "eos_ids", "param"),
    [
        (SamplingParams(ignore_eos=True), (2,), "ignore_eos"),
        (SamplingParams(ignore_eos=True, stop_token_ids=(3,)), None, "ignore_eos"),
        (SamplingParams(), (), "stop_token_ids"),
    ],
)
def test_what_never_ends_cannot_follow_a_grammar(
    sampling: SamplingParams, eos_ids: tuple[int, ...] | None, param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        sampling.check_constrained(eos_ids)
    assert (caught.value.failure.status, caught.value.failure.param) == (400, param)


def test_what_ends_may_follow_a_grammar() -> None:
    SamplingParams().check_constrained()
    SamplingParams(min_tokens=3).check_constrained((2,))
    SamplingParams(stop_token_ids=(3,)).check_constrained(())
