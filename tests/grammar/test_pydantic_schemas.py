"""Schemas that pydantic makes: what is written parses as the model, and dumped models are taken."""

from __future__ import annotations

import json
import random

import pytest
from pydantic import BaseModel

from tests.grammar.pydantic_models import MODELS, SAYS_LESS
from tests.grammar.test_json_schema import validate, walk_of
from tests.grammar.walking import sample


@pytest.mark.parametrize("model", MODELS, ids=[model.__name__ for model in MODELS])
def test_what_is_written_parses_as_the_model(model: type[BaseModel]) -> None:
    schema = model.model_json_schema()
    walk, rng = walk_of(schema), random.Random(model.__name__)
    finished = 0
    for _ in range(6):
        text = sample(walk, rng, most=2_000)
        if text is None:
            continue
        finished += 1
        validate(json.loads(text), schema)
        if model in SAYS_LESS:
            continue
        again = model.model_validate_json(text).model_dump_json(by_alias=True, exclude_unset=True)
        is_same_value = json.loads(again) == json.loads(text)  # a time may come back in another form
        assert not is_same_value or walk.accepts(again.encode())
    assert finished
