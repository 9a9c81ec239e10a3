"""The completion body: four forms of prompt, and the fields that chat does not have."""

import json
from typing import Any

import numpy as np
import pytest

from asyncpage.errors import Failure, RequestError
from asyncpage.messages import TextPrompt, TokenPrompt
from asyncpage.server.call import Call
from asyncpage.server.generate.call_fields import Setting
from asyncpage.server.json_body import parse_object
from asyncpage.server.openai.completion_body import read_completion

SETTING = Setting(
    model_names=("echo",),
    vocab_size=257,
    max_model_len=64,
    has_chat_template=False,
    defaults={},
    max_choices=16,
    timeout_s=None,
    now=0.0,
)


def ask(**fields: Any) -> Call:
    return read_completion(parse_object(json.dumps(fields).encode()), SETTING)


def refusal(**fields: Any) -> Failure:
    with pytest.raises(RequestError) as caught:
        ask(**fields)
    return caught.value.failure


def ids(*tokens: int) -> TokenPrompt:
    return TokenPrompt(np.array(tokens, dtype="<i4").tobytes())


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", (TextPrompt("a"),)),
        (["a"], (TextPrompt("a"),)),
        (["a", "b"], (TextPrompt("a"), TextPrompt("b"))),
        ([1, 256], (ids(1, 256),)),
        ([1.0, 2], (ids(1, 2),)),
        ([[1], [2, 3]], (ids(1), ids(2, 3))),
    ],
)
def test_a_prompt_has_four_forms(prompt: Any, prompts: tuple[Any, ...]) -> None:
    assert ask(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        "",
        [],
        [[]],
        [""],
        ["a", ""],
        [1, "a"],
        ["a", 1],
        ["a", [1]],
        [[1], "a"],
        [True],
        [[True]],
        [[[1]]],
        [1.5],
        [-1],
        [257],
        [2**40],
        [None],
        {"a": 1},
        5,
        ["a"] * 100_000,
        [[[1]]] * 100_000,
        [[1]] * 17,
    ],
)
def test_any_other_prompt_is_refused(prompt: Any) -> None:
    failure = refusal(prompt=prompt)
    assert failure.status == 400
    assert (failure.param or "").split(".")[0] == "prompt"


def test_prompts_times_choices_are_bounded_by_the_operator() -> None:
    assert ask(prompt=["a"] * 8, n=2).choices == 16
    failure = refusal(prompt=["a"] * 6, n=3)
    assert failure.param == "prompt"
    assert "16" in failure.message
    assert refusal(prompt="a", n=17).param == "n"


def test_token_ids_beyond_the_context_are_refused_before_they_are_looked_at() -> None:
    failure = refusal(prompt=list(range(65)))
    assert failure.code == "context_length_exceeded"
    assert "65" in failure.message
    assert "64" in failure.message
    assert ask(prompt=list(range(65)), truncate_prompt_tokens=10).options.truncate_prompt_tokens == 10
    for max_tokens, kept in ((1, 63), (0, 64)):
        cut = ask(prompt=list(range(65)), truncate_prompt_tokens=-1, max_tokens=max_tokens)
        assert cut.options.truncate_prompt_tokens == kept


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [({}, 16), ({"max_tokens": None}, 16), ({"max_tokens": 0}, 0), ({"max_tokens": 3}, 3), ({"min_tokens": 40}, 40)],
)
def test_max_tokens_defaults_to_sixteen_and_may_be_zero(fields: dict[str, Any], max_tokens: int) -> None:
    assert ask(prompt="a", **fields).sampling.max_tokens == max_tokens


def test_logprobs_are_a_number_and_echo_wants_them_of_the_prompt_too() -> None:
    assert ask(prompt="a", logprobs=0).sampling.logprobs == 0
    assert ask(prompt="a", logprobs=5).sampling.prompt_logprobs is None
    echoed = ask(prompt="a", logprobs=1, echo=True)
    assert (echoed.sampling.prompt_logprobs, echoed.options.echo, echoed.output.prompt_logprobs) == (1, True, None)
    both = ask(prompt="a", logprobs=1, echo=True, prompt_logprobs=4)
    assert (both.sampling.prompt_logprobs, both.output.prompt_logprobs) == (4, 4)
    for value in (-1, 21, 10**6, True, "1"):
        assert refusal(prompt="a", logprobs=value).param == "logprobs"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 17}, "best_of"),
        ({"best_of": 10**6}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"echo": "yes"}, "echo"),
        ({"tools": [1]}, "tools"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    failure = refusal(prompt="a", **fields)
    assert (failure.status, failure.param) == (400, param)


def test_more_choices_may_be_drawn_than_are_shown() -> None:
    call = ask(prompt=["a", "b"], n=2, best_of=3)
    assert (call.sampling.n, call.shown, call.choices, call.sampling.logprobs) == (3, 2, 6, 0)
    for fields in ({}, {"best_of": 1}, {"best_of": 3, "n": 3}):
        assert (ask(prompt="a", **fields).shown, ask(prompt="a", **fields).sampling.logprobs) == (None, None)
    assert ask(prompt="a", best_of=2, logprobs=4).output.logprobs == 4
    assert ask(prompt="a", best_of=2).output.logprobs is None
    assert refusal(prompt=["a"] * 6, best_of=3).param == "prompt"


def test_special_tokens_around_a_text_can_be_left_out() -> None:
    assert ask(prompt="a").prompts == (TextPrompt("a", add_special=True),)
    assert ask(prompt=["a"], add_special_tokens=False).prompts == (TextPrompt("a", add_special=False),)
    assert refusal(prompt="a", add_special_tokens="no").param == "add_special_tokens"


def test_fields_that_ask_for_nothing_are_accepted() -> None:
    call = ask(prompt="a", best_of=2, n=2, suffix=None, add_special_tokens=True, logprobs=None)
    assert call.sampling.n == 2
    assert call.ignored == ()
