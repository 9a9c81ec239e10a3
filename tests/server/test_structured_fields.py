"""What a body says that the answer must look like: each field leads to a grammar, or to an error that names it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import Failure, RequestError
from asyncpage.grammar.source import GrammarSource
from asyncpage.messages import Constraint, RequestOptions, TextPrompt
from asyncpage.server.call import Call, Output
from asyncpage.server.fields import Fields
from asyncpage.server.generate.structured_fields import compile_call, read_structured

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {}, "a": {}}}
TEXT = json.dumps(SCHEMA)


def asked(body: Mapping[str, Any]) -> tuple[GrammarSource, str] | None:
    return read_structured(Fields(dict(body)))


def refusal(body: Mapping[str, Any]) -> Failure:
    with pytest.raises(RequestError) as caught:
        asked(body)
    assert caught.value.failure.status == 400
    return caught.value.failure


@pytest.mark.parametrize(
    ("body", "source", "param"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"strict": True, "schema": SCHEMA}}},
            GrammarSource("json_schema", TEXT),
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
            GrammarSource("json_schema", TEXT),
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object"}}, GrammarSource("json_object"), "response_format"),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            GrammarSource("json_schema", TEXT),
            "response_format.schema",
        ),
        ({"structured_outputs": {"json": SCHEMA}}, GrammarSource("json_schema", TEXT), "structured_outputs.json"),
        ({"structured_outputs": {"json": TEXT}}, GrammarSource("json_schema", TEXT), "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a+"}}, GrammarSource("regex", "a+"), "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a", "json": None}}, GrammarSource("regex", "a"), "structured_outputs.regex"),
        (
            {"structured_outputs": {"choice": ["yes", "né"]}},
            GrammarSource("choice", '["yes", "né"]'),
            "structured_outputs.choice",
        ),
        (
            {"structured_outputs": {"grammar": "r ::= x"}},
            GrammarSource("grammar", "r ::= x"),
            "structured_outputs.grammar",
        ),
        ({"structured_outputs": {"json_object": True}}, GrammarSource("json_object"), "structured_outputs.json_object"),
        ({"structured_outputs": {"json": " true "}}, GrammarSource("json_schema", "true"), "structured_outputs.json"),
        ({"guided_json": TEXT}, GrammarSource("json_schema", TEXT), "guided_json"),
        ({"guided_json": SCHEMA}, GrammarSource("json_schema", TEXT), "guided_json"),
        ({"guided_regex": "a"}, GrammarSource("regex", "a"), "guided_regex"),
        ({"guided_choice": ["a"]}, GrammarSource("choice", '["a"]'), "guided_choice"),
        ({"guided_grammar": "root ::= x"}, GrammarSource("grammar", "root ::= x"), "guided_grammar"),
        ({"guided_json_object": True}, GrammarSource("json_object"), "guided_json_object"),
        ({"json_schema": SCHEMA}, GrammarSource("json_schema", TEXT), "json_schema"),
        ({"grammar": "root ::= x"}, GrammarSource("grammar", "root ::= x"), "grammar"),
    ],
)
def test_each_field_that_constrains_is_read(body: dict[str, Any], source: GrammarSource, param: str) -> None:
    assert asked(body) == (source, param)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"structured_outputs": None},
        {"guided_json": None, "grammar": None, "json_schema": None, "guided_decoding_backend": "auto"},
        {"guided_json_object": False, "grammar": ""},
    ],
)
def test_null_and_free_text_constrain_nothing(body: dict[str, Any]) -> None:
    assert asked(body) is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
            "response_format.json_schema.schema",
        ),
        *(
            (
                {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
                "response_format.json_schema.schema",
            )
            for schema in (True, False, "true")
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}},
            "response_format.json_schema.strict",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"json": ""}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": 3}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "a"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[1]"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": '{"const": "\\ud800"}'}}, "structured_outputs.json.const"),
        ({"guided_json": '{"a":' * 100_000}, "guided_json"),
        ({"guided_json": '{"const": NaN}'}, "guided_json.const"),
        ({"json_schema": '{"const": 1' + "0" * 5_000 + "}"}, "json_schema"),
        ({"json_schema": '{"const": 1e999}'}, "json_schema"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": ["a"]}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": "ab"}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " *"}}, "structured_outputs.whitespace_pattern"),
        (
            {"structured_outputs": {"json": {}, "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
        ),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"guided_anything": 1}, "guided_anything"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"response_format": {"type": "json_object"}, "grammar": "root ::= x"}, "grammar"),
        ({"json_schema": [1]}, "json_schema"),
        ({"guided_regex": "a" * (1 << 20) + "a"}, "guided_regex"),
    ],
)
def test_what_is_no_constraint_or_more_than_one_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    assert refusal(body).param == param


def test_a_schema_keeps_the_order_of_its_properties() -> None:
    found = asked({"guided_json": SCHEMA})
    assert found is not None
    assert list(json.loads(found[0].text)["properties"]) == ["b", "a"]


CALL = Call("m", (TextPrompt("x"),), SamplingParams(), RequestOptions(), Output())


async def test_an_error_inside_a_grammar_names_the_field_and_the_place_in_it(make_engine: Callable[[], Any]) -> None:
    call = replace(CALL, grammar=GrammarSource("json_schema", "refused"), grammar_param="guided_json")
    with pytest.raises(RequestError) as caught:
        await compile_call(make_engine(), call)
    assert caught.value.failure == Failure(
        400, "guided_json.properties.a: it cannot be", "unsupported", "guided_json.properties.a"
    )


async def test_a_call_without_a_grammar_compiles_nothing(make_engine: Callable[[], Any]) -> None:
    assert await compile_call(make_engine(), CALL) is None
    call = replace(CALL, grammar=GrammarSource("regex", "a"))
    assert await compile_call(make_engine(), call) == Constraint(b"regex", b"a")


async def test_an_answer_that_never_ends_cannot_follow_a_grammar(make_engine: Callable[[], Any]) -> None:
    call = replace(CALL, grammar=GrammarSource("regex", "a"), sampling=SamplingParams(ignore_eos=True))
    with pytest.raises(RequestError, match="ignore_eos") as caught:
        await compile_call(make_engine(), call)
    assert caught.value.failure.param == "ignore_eos"
