"""Who may queue, with the numbers worked out by hand."""

from array import array
from dataclasses import replace

import pytest

from asyncpage.core.admission import SchedulerSettings, refusal
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import Failure
from asyncpage.messages import Adapter, Admit, RequestId, RequestOptions

SETTINGS = SchedulerSettings(
    rows=3,
    block_size=4,
    groups=2,
    capacity_blocks=20,
    max_tokens=40,
    budget_tokens=64,
    long_prefill_tokens=0,
    depth=1,
    max_queue=5,
    vocab_size=97,
    policy="fcfs",
    eos_ids=(),
    seed=0,
)


def judge(
    prompt: int, *, living: int = 0, n: int = 1, lora: Adapter | None = None, adapter_slots: int = 0
) -> Failure | None:
    tokens = array("i", range(prompt)).tobytes()
    admit = Admit(RequestId(1), tokens, (), SamplingParams(n=n), RequestOptions(lora=lora))
    return refusal(admit, replace(SETTINGS, adapter_slots=adapter_slots), living=living, retry_after_s=7.0)


def test_a_prompt_that_fills_the_pool_may_queue_and_one_block_more_may_not() -> None:
    assert judge(40) is None  # ten blocks in each of two groups
    failure = judge(41)
    assert failure is not None
    assert (failure.status, failure.code, failure.param) == (400, "context_length_exceeded", "prompt")
    for number in ("41 tokens", "22 KV blocks", "40 tokens", "20 blocks"):
        assert number in failure.message


@pytest.mark.parametrize(("living", "n", "fits"), [(7, 1, True), (8, 1, False), (4, 4, True), (5, 4, False)])
def test_the_queue_holds_its_bound_beside_a_full_batch(living: int, n: int, fits: bool) -> None:
    failure = judge(4, living=living, n=n)
    if fits:
        assert failure is None
    else:
        assert failure is not None
        assert (failure.status, failure.code, failure.retry_after_s) == (429, "queue_full", 7.0)
        assert "--max-queue 5" in failure.message


def test_more_choices_than_could_ever_queue_are_not_told_to_come_again() -> None:
    failure = judge(4, n=9)
    assert failure is not None
    assert (failure.status, failure.param, failure.retry_after_s) == (400, "n", None)
    assert judge(4, n=8) is None


def test_an_adapter_is_refused_where_none_are_run() -> None:
    failure = judge(4, lora=Adapter("ab" * 32, ""))
    assert failure is not None
    assert (failure.status, failure.code, failure.param) == (400, "adapters_off", "model")
    assert "--enable-lora" in failure.message
    assert judge(4, lora=Adapter("ab" * 32, ""), adapter_slots=1) is None
