"""Which requests a model takes, and how its vectors are made where nobody says."""

from dataclasses import replace
from typing import Any

import pytest

from asyncpage.core.pooling import POOLED, check_mode, choose_pooling
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import RequestError, UsageError
from asyncpage.messages import Pooling, RequestOptions

RAW_CLS = Pooling("cls", is_normalized=False)


@pytest.mark.parametrize(
    ("word", "found", "kind", "chosen"),
    [
        ("auto", None, "decoder", Pooling("last")),
        ("auto", None, "encoder", Pooling("mean")),
        ("auto", RAW_CLS, "encoder", RAW_CLS),
        ("auto", Pooling("mean"), "decoder", Pooling("mean")),
        ("last", RAW_CLS, "encoder", Pooling("last", is_normalized=False)),
        ("mean", None, "decoder", Pooling("mean")),
        ("none", Pooling("mean"), "decoder", None),
    ],
)
def test_the_users_word_goes_before_the_files_and_these_before_what_is_usual(
    word: str, found: Any, kind: Any, chosen: Any
) -> None:
    assert choose_pooling(word, found, kind) == chosen


@pytest.mark.parametrize(
    ("word", "found", "kind"),
    [("none", None, "encoder"), ("cls", None, "decoder"), ("auto", RAW_CLS, "decoder"), ("max", None, "encoder")],
)
def test_a_word_that_makes_no_vector_is_refused(word: str, found: Any, kind: Any) -> None:
    with pytest.raises(UsageError, match=r"--pooling|use last or mean"):
        choose_pooling(word, found, kind)


def refusal(kind: Any, served: Any, sampling: SamplingParams, options: RequestOptions) -> str | None:
    """The field that is to blame, None where the request is fine."""
    try:
        check_mode(kind, served, sampling, options)
    except RequestError as error:
        return f"{error.failure.status} {error.failure.param}"
    return None


def test_a_request_asks_for_what_the_model_does_and_for_nothing_beside() -> None:
    mean, wanted = Pooling("mean"), RequestOptions(pooling=Pooling("mean"))
    assert refusal("decoder", mean, SamplingParams(), RequestOptions()) is None
    assert refusal("decoder", None, SamplingParams(), RequestOptions()) is None
    assert refusal("encoder", mean, SamplingParams(), RequestOptions()) == "400 model"
    assert refusal("encoder", mean, POOLED, wanted) is None
    assert refusal("decoder", mean, POOLED, RequestOptions(pooling=Pooling("last"))) is None
    assert refusal("decoder", None, POOLED, wanted) == "400 model"
    assert refusal("decoder", mean, POOLED, RequestOptions(pooling=Pooling("cls"))) == "400 pooling"
    assert refusal("encoder", mean, POOLED, RequestOptions(pooling=Pooling("cls"))) is None
    for sampling in (SamplingParams(), replace(POOLED, n=2), replace(POOLED, prompt_logprobs=0)):
        assert refusal("decoder", mean, sampling, wanted) == "400 pooling"
    assert refusal("decoder", mean, POOLED, replace(wanted, echo=True)) == "400 pooling"
