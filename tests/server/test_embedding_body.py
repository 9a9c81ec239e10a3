"""The embeddings body: four forms of input, and what may be said about the vectors."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asyncpage.errors import Failure, RequestError
from asyncpage.messages import Pooling, TextPrompt, TokenPrompt
from asyncpage.server.call import Call
from asyncpage.server.generate.call_fields import Setting
from asyncpage.server.json_body import parse_object
from asyncpage.server.openai.embedding_body import read_embedding

SETTING = Setting(
    model_names=("echo",),
    vocab_size=257,
    max_model_len=64,
    has_chat_template=False,
    defaults={"max_tokens": 100},
    max_choices=2,
    timeout_s=None,
    now=0.0,
    pooling=Pooling("mean"),
    hidden_size=384,
    max_inputs=5,
)


def ask(setting: Setting = SETTING, **fields: Any) -> Call:
    return read_embedding(parse_object(json.dumps(fields).encode()), setting)


def refusal(setting: Setting = SETTING, **fields: Any) -> Failure:
    with pytest.raises(RequestError) as caught:
        ask(setting, **fields)
    return caught.value.failure


def ids(*tokens: int) -> TokenPrompt:
    return TokenPrompt(np.array(tokens, dtype="<i4").tobytes())


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("a", (TextPrompt("a"),)),
        (["a", "b", "a"], (TextPrompt("a"), TextPrompt("b"), TextPrompt("a"))),
        ([1, 256], (ids(1, 256),)),
        ([[1], [2.0, 3]], (ids(1), ids(2, 3))),
        ([0] * 64, (ids(*[0] * 64),)),  # nothing needs room behind it
    ],
)
def test_an_input_has_four_forms_and_each_is_one_request_without_an_answer(given: Any, prompts: Any) -> None:
    call = ask(input=given)
    assert call.prompts == prompts
    assert (call.sampling.max_tokens, call.sampling.n, call.choices) == (0, 1, len(prompts))
    assert call.options.pooling == Pooling("mean")


@pytest.mark.parametrize("given", [None, "", [], [""], [[]], 3, {"text": "a"}, [None], ["a", [1]], [[1], "a"], [["a"]]])
def test_anything_else_is_refused_by_name(given: Any) -> None:
    failure = refusal(input=given)
    assert failure.status == 400
    assert failure.param is not None
    assert failure.param.partition(".")[0] == "input"


def test_a_token_that_the_model_does_not_have_is_named_with_its_place() -> None:
    failure = refusal(input=[[1], [2, 257]])
    assert (failure.status, failure.param) == (400, "input")
    assert "input.1: token id 257 is outside the vocabulary of 257" in failure.message


def test_more_inputs_than_the_engine_holds_are_refused_with_the_number() -> None:
    assert ask(input=["a"] * 5).choices == 5  # more than the choices that a generation may ask for
    failure = refusal(input=["a"] * 6)
    assert failure.param == "input"
    assert "at most 5 " in failure.message
    assert "at most 2048 " in refusal(replace(SETTING, max_inputs=10**6), input=["a"] * 2049).message


def test_too_many_token_ids_are_refused_unless_they_are_to_be_cut() -> None:
    failure = refusal(input=[[1], [2] * 65])
    assert (failure.code, failure.param) == ("context_length_exceeded", "input")
    assert failure.message.startswith("input.1 has 65 tokens")
    assert ask(input=[2] * 65, truncate_prompt_tokens=8).options.truncate_prompt_tokens == 8
    assert ask(input=[2] * 65, truncate_prompt_tokens=-1).options.truncate_prompt_tokens == 64
    assert refusal(input="a", truncate_prompt_tokens=65).param == "truncate_prompt_tokens"


def test_dimensions_other_than_the_models_own_are_refused() -> None:
    assert ask(input="a", dimensions=384).choices == 1
    failure = refusal(input="a", dimensions=256)
    assert (failure.status, failure.param, failure.code) == (400, "dimensions", "unsupported")
    assert "384" in failure.message
    assert refusal(input="a", dimensions=0).param == "dimensions"


def test_an_encoding_is_float_or_base64() -> None:
    assert ask(input="a").output.encoding_format == "float"
    assert ask(input="a", encoding_format=None).output.encoding_format == "float"
    assert ask(input="a", encoding_format="base64").output.encoding_format == "base64"
    for wrong in ("int8", 3, ["float"]):
        assert refusal(input="a", encoding_format=wrong).param == "encoding_format"


def test_options_of_the_engine_are_read_and_what_nobody_knows_is_counted() -> None:
    call = ask(input="a", user="u", priority=3, cache_salt="s", timeout=2, normalize=False, strange=1, model="echo")
    assert (call.options.priority, call.options.cache_salt, call.options.deadline) == (3, "s", 2.0)
    assert call.options.pooling == Pooling("mean", is_normalized=False)
    assert call.ignored == ("strange",)
    assert refusal(input="a", user=7).param == "user"
    assert refusal(input="a", add_special_tokens=False).code == "unsupported"


def test_a_model_that_is_not_served_is_not_found_and_one_without_embeddings_says_so() -> None:
    assert refusal(input="a", model="other").status == 404
    failure = refusal(replace(SETTING, pooling=None), input="a")
    assert (failure.status, failure.param, failure.code) == (400, "model", "unsupported")
