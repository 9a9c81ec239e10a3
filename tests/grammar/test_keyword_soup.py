"""Keywords thrown together at random: the compiler refuses, or what it writes is valid; it never does anything else."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from asyncpage.errors import RequestError
from tests.grammar.test_json_schema import FORMATS
from tests.grammar.walking import compiled, sample

VALUES: list[Any] = [None, True, False, 0, 1, -1, 3, 2.5, 1e300, "", "a", "abc", "2024-02-29", [], {}, [1], {"a": 1}]

Draw = Callable[[random.Random, int], Any]


def _schema(rng: random.Random, depth: int) -> Any:
    if depth <= 0 or rng.random() < 0.1:
        return rng.choice([True, False, {}, {"type": "integer"}, {"type": "string"}, {"const": "a"}])
    keywords = rng.sample(sorted(KEYWORDS), rng.randint(0, 4))
    return {keyword: KEYWORDS[keyword](rng, depth - 1) for keyword in keywords}


def _several(rng: random.Random, depth: int) -> Any:
    return [_schema(rng, depth) for _ in range(rng.randint(1, 3))]


def _small(rng: random.Random, depth: int) -> int:
    return rng.randint(0, 5)


KEYWORDS: dict[str, Draw] = {
    "type": lambda rng, _: rng.choice(
        ["string", "object", "array", "integer", "number", "null", ["boolean", "string"]]
    ),
    "enum": lambda rng, _: rng.sample(VALUES, 4),
    "const": lambda rng, _: rng.choice(VALUES),
    "anyOf": _several,
    "oneOf": _several,
    "allOf": _several,
    "$ref": lambda rng, _: rng.choice(["#", "#/$defs/a", "#/properties/a"]),
    "$defs": lambda rng, depth: {"a": _schema(rng, depth)},
    "properties": lambda rng, depth: {name: _schema(rng, depth) for name in rng.sample("abc", 2)},
    "patternProperties": lambda rng, depth: {"^[ax]": _schema(rng, depth)},
    "propertyNames": lambda rng, _: rng.choice([{"maxLength": 1}, {"enum": ["a", "b", "x"]}, {"pattern": "[ax]"}]),
    "required": lambda rng, _: rng.sample(["a", "b", "x"], rng.randint(0, 2)),
    "additionalProperties": _schema,
    "items": _schema,
    "prefixItems": _several,
    "uniqueItems": lambda rng, _: rng.random() < 0.5,
    "pattern": lambda rng, _: rng.choice(["^a+$", "b", "^[^x]{2,5}", "^(?!a).*$", "^.?$"]),
    "format": lambda rng, _: rng.choice(["date", "uuid", "email", "ipv4"]),
    "multipleOf": lambda rng, _: rng.choice([1, 3, 0.5, 10]),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _small),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"), _small),
}


@pytest.mark.parametrize("seed", range(8))
def test_keywords_at_random_are_refused_or_enforced(seed: int) -> None:
    rng, outcomes = random.Random(seed), Counter[str]()
    for _ in range(60):
        schema = _schema(rng, 3)
        try:
            walk = compiled("json_schema", json.dumps(schema))
        except RequestError as error:
            outcomes[str(error.failure.code)] += 1
            continue
        validator = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
        for _ in range(3):
            text = sample(walk, rng, most=150)
            if text is not None:
                validator.validate(json.loads(text))
                outcomes["valid"] += 1
    assert outcomes.keys() <= {"valid", "unsupported", "invalid_grammar", "grammar_too_large"}
    assert outcomes["valid"] > 40
