"""Schemas against an independent validator: what is written is valid, and what is valid is taken."""

from __future__ import annotations

import datetime
import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncpage.errors import RequestError
from tests.grammar.schema_pairs import Pair, pairs
from tests.grammar.walking import Walk, compiled, sample

LAYOUTS: list[dict[str, Any]] = [{}, {"separators": (",", ":")}, {"indent": 2}, {"indent": 4}, {"indent": 1}]


FORMATS = jsonschema.FormatChecker(["date", "email", "ipv4", "ipv6", "uuid"])


@FORMATS.checks("date-time", raises=ValueError)
def _is_date_time(value: object) -> bool:
    return not isinstance(value, str) or datetime.datetime.fromisoformat(value).tzinfo is not None


@FORMATS.checks("time", raises=ValueError)
def _is_time(value: object) -> bool:
    return not isinstance(value, str) or datetime.time.fromisoformat(value).tzinfo is not None


def validate(value: Any, schema: Any) -> None:
    jsonschema.Draft202012Validator(schema, format_checker=FORMATS).validate(value)


def walk_of(schema: Any) -> Walk:
    return compiled("json_schema", json.dumps(schema))


def samples(schema: Any, count: int, seed: int = 0, most: int = 3_000) -> list[Any]:
    """Values of texts by chance, each of them checked to be valid."""
    walk, rng, found = walk_of(schema), random.Random(seed), []
    for _ in range(count):
        text = sample(walk, rng, most=most)
        if text is not None:
            value = json.loads(text)
            validate(value, schema)
            found.append(value)
    assert found, "no text came to its end"
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(pairs(), st.sampled_from(LAYOUTS), st.integers(0, 2**32))
def test_a_valid_value_is_taken_in_every_layout_and_what_is_written_is_valid(
    pair: Pair, layout: dict[str, Any], seed: int
) -> None:
    schema, value = pair
    validate(value, schema)
    walk = walk_of(schema)
    assert walk.accepts(json.dumps(value, ensure_ascii=False, **layout).encode())
    rng = random.Random(seed)
    for _ in range(2):
        written = sample(walk, rng)
        if written is not None:
            validate(json.loads(written), schema)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "integer", "minimum": 3, "maximum": 5}, [3, 4, 5], [2, 6, 30, -3, 3.5]),
        ({"type": "integer", "minimum": -17, "exclusiveMaximum": 120}, [-17, -9, 0, 7, 119], [-18, 120, 1190]),
        ({"type": "integer", "minimum": 98, "maximum": 1002}, [98, 99, 100, 999, 1002], [97, 1003, 9, 10020]),
        ({"type": "integer", "minimum": 10**20}, [10**20, 10**20 + 5], [10**20 - 1, 5]),
        ({"type": "integer", "format": "int32"}, [2**31 - 1, -(2**31)], [2**31, -(2**31) - 1]),
        ({"type": "integer", "format": "int64"}, [2**63 - 1, -(2**63)], [2**63]),
        ({"type": "number", "minimum": 0.5, "maximum": 1.25}, [0.5, 0.75, 1, 1.25, 1.249], [0.49, 1.26, 2, 0]),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, [0.1, 0.999], [0, 1, 0.0, 1.0]),
        ({"type": "number", "exclusiveMinimum": -0.5}, [-0.25, 0, 7.5], [-0.5, -1]),
        ({"type": "number", "maximum": -1}, [-1, -1.5, -1000], [0, 1, -0.9]),
        ({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 50}, [7, 49], [0, 1, 48, 56]),
        ({"type": "integer", "multipleOf": 1.5}, [3, -6, 0], [1, 2, 4.5]),
        ({"type": "number", "multipleOf": 0.25}, [0.25, -1.5, 3, 0.75], [0.3, 0.125]),
        ({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer"}, [12, 24, 0], [4, 6, 8]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "é😀", 'a"\\'], ["a", "abcd", "😀"]),
        ({"type": "string", "pattern": "^a+$", "maxLength": 4}, ["a", "aaaa"], ["", "aaaaa", "b"]),
        ({"type": "string", "pattern": "b"}, ["b", "abc"], ["", "ac"]),
        ({"type": "string", "pattern": '^"\\\\\\n/$'}, ['"\\\n/'], ["x"]),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, ["ab", "ba"], ["a", "b", ""]),
        ({"type": "string", "format": "uuid", "pattern": "^0"}, ["0" * 8 + "-1111" * 3 + "-" + "a" * 12], ["1"]),
        ({"type": ["string", "null"]}, ["", None], [1, False]),
        ({"type": ["integer", "number"]}, [1, 1.5], ["1"]),
        ({"enum": ["a", 1, None, {"x": [1, 2]}]}, ["a", 1, None, {"x": [1, 2]}], [2, {"x": []}, {}]),
        ({"enum": ["a", "bb", 7], "type": "string", "minLength": 2}, ["bb"], ["a", 7]),
        ({"enum": [1, 2.0, 3], "maximum": 2}, [1, 2], [3]),
        ({"enum": [1e300, 3, 4], "multipleOf": 3}, [3], [4]),
        ({"const": "é\n"}, ["é\n"], ["é"]),
        ({"const": True}, [True], [1, False]),
        ({"const": 1, "enum": [True, 1, 2]}, [1], [True, 2]),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [1, 2, 3]]),
        ({"type": "array", "prefixItems": [{"const": 1}], "items": False}, [[1], []], [[1, 1], [2]]),
        (
            {"allOf": [{"prefixItems": [{"type": "integer"}]}, {"items": {"minimum": 3}}], "type": "array"},
            [[3], [4, 3]],
            [[2], ["a"]],
        ),
        (
            {"type": "array", "items": {"type": "null"}, "minItems": 300, "maxItems": 301},
            [[None] * 300],
            [[None] * 299],
        ),
        (
            {"type": "array", "items": {"enum": ["a", 1, True]}, "uniqueItems": True, "minItems": 1, "maxItems": 2},
            [["a"], [1, "a"], [True, 1]],
            [[], ["a", "a"], ["a", 1, True], [2]],
        ),
        ({"type": "array", "items": {"type": ["boolean", "null"]}, "uniqueItems": True}, [[], [None, True]], [[1, 1]]),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, [[], ["x"]], [["x", "x"]]),
        ({"enum": [[1, 1], [1, 2], [1, True]], "uniqueItems": True}, [[1, 2], [1, True]], [[1, 1]]),
        ({"type": "object", "properties": {}}, [{}], [{"a": 1}, []]),
        ({"type": "object"}, [{}, {"a": {"b": [1, {}]}}], [[]]),
        (
            {"properties": {"a": {"type": "null"}}, "required": ["a"]},
            [{"a": None}],
            [{}, {"a": 1}, {"a": None, "b": 1}],
        ),
        (
            {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["c", "b"]},
            [{"b": 1, "c": []}, {"a": 1, "b": 2, "c": 3}],
            [{"b": 1}, {"c": 1, "b": 1}, {"a": 1, "b": 2}],
        ),
        (
            {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"type": "boolean"}},
            [{"a": 1, "ab": True}, {"b": False}, {}],
            [{"a": True}, {"b": 1}, {"b": True, "a": 1}],
        ),
        (
            {"type": "object", "patternProperties": {"^S_": {"type": "string"}, "_I$": {"type": "integer"}}},
            [{"S_a": "x"}, {"a_I": 5, "S_": ""}],
            [{"S_a": 5}, {"x": 1}, {"a_I": "x"}],
        ),
        (
            {"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 2}},
            [{"ab": 1}, {}],
            [{"abc": 1}, {"A": 1}],
        ),
        (
            {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": {"type": "integer"}},
            [{"x": 1}, {"x": 1, "y": 2}],
            [{"z": 1}, {"x": "a"}],
        ),
        (
            {"type": "object", "properties": {c: {"const": 1} for c in "abcd"}, "minProperties": 2, "maxProperties": 3},
            [{"a": 1, "d": 1}, {"b": 1, "c": 1, "d": 1}],
            [{"a": 1}, {}, {"a": 1, "b": 1, "c": 1, "d": 1}],
        ),
        ({"type": "object", "minProperties": 1, "maxProperties": 2}, [{"a": 1}, {"a": 1, "b": 2}], [{}]),
        (
            {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}, "type": "object"},
            [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
            [{}],
        ),
        (
            {"allOf": [{"properties": {"a": {"type": "integer"}}, "additionalProperties": False}, {"required": ["a"]}]},
            [{"a": 1}],
            [{}, {"a": "x"}, {"a": 1, "b": 1}],
        ),
        (
            {"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}, "type": "object"}}, "$ref": "#/$defs/n"},
            [{}, {"next": {"next": {}}}],
            [{"next": 1}],
        ),
        (
            {"definitions": {"a/b~c": {"const": 5}}, "items": {"$ref": "#/definitions/a~1b~0c"}, "type": "array"},
            [[5, 5]],
            [[4]],
        ),
        ({"$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a", "maxLength": 1}, ["", "a"], ["ab"]),
        (True, [1, "a", [None, {"b": {}}], 1.5, -0.25], []),
        ({"title": "any", "$comment": "", "examples": [1], "x-note": 5, "nullable": True}, [1, {}], []),
    ],
)
def test_a_schema_takes_what_is_valid_and_nothing_else(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    walk = walk_of(schema)
    for value in valid:
        validate(value, schema)
    taken = [value for value in valid + invalid if walk.accepts(json.dumps(value, ensure_ascii=False).encode())]
    assert taken == valid
    samples(schema, 12)


def test_the_older_form_of_tuples_means_what_it_meant() -> None:
    schema = {"type": "array", "items": [{"const": 1}], "additionalItems": {"const": 2}}
    walk = walk_of(schema)
    values = [[1, 2, 2], [1], [], [2], [1, 1]]
    oracle = jsonschema.Draft7Validator(schema)
    assert [walk.accepts(json.dumps(value).encode()) for value in values] == list(map(oracle.is_valid, values))


@pytest.mark.parametrize(
    ("branches", "valid", "invalid"),
    [
        ([{"type": "integer"}, {"type": "string"}], [1, "a"], [None]),
        ([{"const": 1}, {"enum": [2, 3]}], [1, 2, 3], [4]),
        ([{"type": "number", "maximum": 3}, {"type": "integer", "exclusiveMinimum": 3}], [2.5, 3, 4], [3.5]),
        ([{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3}], ["a", "abc"], [1]),
        ([{"type": "string", "pattern": "^a"}, {"type": "string", "format": "date"}], ["ab", "2024-02-29"], ["b"]),
        (
            [
                {"type": "object", "properties": {"t": {"const": "a"}, "x": {"type": "integer"}}},
                {"type": "object", "properties": {"t": {"enum": ["b", "c"]}, "y": {"type": "integer"}}},
            ],
            [{"t": "a", "x": 1}, {"t": "c", "y": 1}, {"t": "b"}],
            [{"t": "a", "y": 1}, {"x": 1}, {}],
        ),
        (
            [
                {"type": "object", "properties": {"a": {}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {}}, "required": ["b"]},
            ],
            [{"a": 1}, {"b": 1}],
            [{"a": 1, "b": 1}, {}],
        ),
        (
            [
                {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
                {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"]},
            ],
            [{"a": 1}, {}, {"b": 1}, {"a": 1, "b": 1}],
            [{"c": 1}],
        ),
        (
            [{"type": "array", "maxItems": 1}, {"type": "array", "minItems": 2}, {"type": "null"}],
            [[], [1, 2], None],
            [1],
        ),
    ],
)
def test_branches_that_exclude_each_other_are_told_apart(
    branches: list[Any], valid: list[Any], invalid: list[Any]
) -> None:
    walk = walk_of({"oneOf": branches})
    for value in valid:
        validate(value, {"oneOf": branches})
    assert [value for value in valid + invalid if walk.accepts(json.dumps(value).encode())] == valid
    samples({"oneOf": branches}, 12)


@pytest.mark.parametrize(
    "branches",
    [
        [{"type": "integer"}, {"const": 1}],
        [{"type": "integer"}, {"type": "number"}],
        [{"type": "object"}, {"type": "object", "properties": {"a": {}}}],
        [{"required": ["a"]}, {"required": ["b"]}],
        [{}, {"type": "null"}],
        [{"type": "array"}, {"type": "array", "items": {"type": "null"}}],
    ],
)
def test_branches_that_may_both_hold_are_refused(branches: list[Any]) -> None:
    with pytest.raises(RequestError, match="oneOf") as raised:
        walk_of({"type": "array", "items": {"oneOf": branches}})
    assert (raised.value.failure.code, raised.value.failure.param) == ("unsupported", "items.oneOf")


def test_a_parents_properties_take_part_in_telling_branches_apart() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    with pytest.raises(RequestError, match="oneOf"):
        walk_of(schema)


UNSUPPORTED: list[tuple[str, Any, str]] = [
    ("not", {"not": {"type": "string"}}, "not"),
    ("if", {"if": {"type": "object"}, "then": {"required": ["z"]}}, "if"),
    ("uniqueItems", {"type": "array", "uniqueItems": True}, "uniqueItems"),
    ("uniqueItems", {"type": "array", "uniqueItems": True, "items": {"enum": [*range(9)]}}, "uniqueItems"),
    ("contains", {"type": "array", "contains": {"const": 1}}, "contains"),
    ("dependentRequired", {"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ("dependentSchemas", {"dependentSchemas": {}}, "dependentSchemas"),
    ("unevaluatedProperties", {"unevaluatedProperties": False}, "unevaluatedProperties"),
    ("unevaluatedItems", {"unevaluatedItems": False}, "unevaluatedItems"),
    ("contentEncoding", {"contentEncoding": "base64"}, "contentEncoding"),
    ("multipleOf", {"type": "number", "multipleOf": 0.1}, "multipleOf"),
    ("format", {"type": "string", "format": "iri"}, "format"),
    ("lookahead", {"type": "string", "pattern": "a(?=b)"}, "pattern"),
    (r"\$ref", {"$ref": "http://127.0.0.1:9/x.json"}, "$ref"),
    (r"\$ref", {"$ref": "#anchor"}, "$ref"),
    (r"\$dynamicRef", {"$dynamicRef": "#x"}, "$dynamicRef"),
    (r"\$id", {"properties": {"a": {"$id": "http://x"}}}, "properties.a.$id"),
    ("minProperties", {"type": "object", "minProperties": 2}, "minProperties"),
    ("spelling", {"type": "string", "maxLenght": 5}, "maxLenght"),
    ("not", {"properties": {"a": {"items": {"anyOf": [{}, {"not": {}}]}}}}, "properties.a.items.anyOf.1.not"),
    ("not", {"$defs": {"x": {"not": {}}}, "items": {"$ref": "#/$defs/x"}}, "$defs.x.not"),
]


@pytest.mark.parametrize(("name", "schema", "param"), UNSUPPORTED, ids=[param for _, _, param in UNSUPPORTED])
def test_a_keyword_that_is_not_enforced_is_refused_by_name(name: str, schema: Any, param: str) -> None:
    with pytest.raises(RequestError, match=name) as raised:
        walk_of(schema)
    failure = raised.value.failure
    assert (failure.status, failure.code, failure.param) == (400, "unsupported", param)


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"type": "str"}, "type"),
        ({"type": []}, "type"),
        ({"type": 5}, "type"),
        ([], ""),
        (None, ""),
        ("", ""),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "properties.a.$ref"),
        ({"properties": {"a": 5}}, "properties.a"),
        ({"properties": []}, "properties"),
        ({"required": "a"}, "required"),
        ({"required": [1]}, "required"),
        ({"minLength": -1}, "minLength"),
        ({"maxLength": 1.5}, "maxLength"),
        ({"minimum": "3"}, "minimum"),
        ({"minimum": True}, "minimum"),
        ({"exclusiveMinimum": True}, "exclusiveMinimum"),
        ({"multipleOf": 0}, "multipleOf"),
        ({"enum": []}, "enum"),
        ({"enum": 5}, "enum"),
        ({"anyOf": []}, "anyOf"),
        ({"allOf": {}}, "allOf"),
        ({"pattern": "("}, "pattern"),
        ({"pattern": 5}, "pattern"),
        ({"format": 5}, "format"),
        ({"items": 5}, "items"),
        ({"$ref": 5}, "$ref"),
        ({"uniqueItems": 1}, "uniqueItems"),
        ({"prefixItems": [{}], "items": [{}]}, "items"),
        ({"additionalProperties": "no"}, "additionalProperties"),
    ],
)
def test_a_malformed_schema_is_refused_at_its_keyword(schema: Any, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        walk_of(schema)
    assert (raised.value.failure.code, raised.value.failure.param) == ("invalid_grammar", param)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"type": "array", "minItems": 5, "maxItems": 2, "items": {}},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 5},
        {"type": "string", "minLength": 5, "maxLength": 4},
        {"type": "string", "pattern": "^a$", "minLength": 2},
        {"type": "string", "enum": [1, 2]},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"allOf": [{"const": 1}, {"const": 2}]},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "object", "properties": {"c": {"$ref": "#"}}, "required": ["c"]},
        {"type": "object", "properties": {"a": {}}, "minProperties": 2},
        {"type": "array", "items": False, "minItems": 1},
        {"type": "object", "propertyNames": {"maxLength": 1}, "required": ["ab"]},
    ],
)
def test_a_schema_that_nothing_satisfies_is_refused_and_says_so(schema: Any) -> None:
    with pytest.raises(RequestError, match="no text can match") as raised:
        walk_of(schema)
    assert raised.value.failure.code == "invalid_grammar"


def test_an_optional_property_that_nothing_satisfies_is_never_begun() -> None:
    walk = walk_of({"type": "object", "properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}, "b": {}}})
    places = walk.after(walk.start, b'{"')
    assert walk.ways(places) == [(ord("b"), ord("b"))]


def test_blanks_alone_come_to_an_end() -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer"}, "n": {"type": "array", "items": {"type": "null"}, "maxItems": 2}},
        "required": ["age", "n"],
    }
    walk = walk_of(schema)
    for blank in (b" ", b"\n"):
        places, text, run, longest = walk.start, bytearray(), 0, 0
        while not (walk.is_end(places) and not walk.ways(places)):
            after = walk.step(places, blank[0])
            run = run + 1 if after else 0
            longest = max(longest, run)
            if not after:
                low = walk.ways(places)[0][0] if not walk.step(places, 0x5D) else 0x5D
                after, text = walk.step(places, low), text + bytes([low])
            else:
                text += blank
            places = after
            assert len(text) < 200
        assert longest <= 33
        validate(json.loads(text), schema)
    assert not walk.after(walk.start, b"{\n" + b" " * 33)
    assert not walk.after(walk.start, b"{  ")
    assert walk.after(walk.start, b"{\n" + b" " * 32 + b'"age"')


def test_every_escape_of_a_free_string_is_taken_and_a_pair_of_surrogates_is_one_character() -> None:
    walk = walk_of({"type": "string", "minLength": 1, "maxLength": 1})
    for text in (r"\"", r"\\", r"\/", r"\b", r"\f", r"\n", r"\r", r"\t", r"\u0041", r"\ud83d\ude00", r"\uD83D\uDE00"):
        assert walk.accepts(f'"{text}"'.encode())
        assert not walk.accepts(f'"{text}{text}"'.encode())
    for text in (r"\x41", r"\ud83d", r"\ude00", r"\ud83dx", "\n", "\t", r"\u12", ""):
        assert not walk.accepts(f'"{text}"'.encode())
    assert not walk.accepts(b'"\xed\xa0\x80"')
    assert not walk.accepts(b'"\xc0\x80"')
