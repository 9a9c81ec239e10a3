"""Compilation as a whole: small kinds, equal networks in every process, and hostile sources."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from typing import Any

import pytest

from asyncpage.errors import RequestError
from asyncpage.grammar.compile import compile_source
from asyncpage.grammar.source import GrammarKind, GrammarSource
from tests.grammar.pydantic_models import MODELS
from tests.grammar.walking import Walk, compiled, sample


def structure(part: Any) -> Walk:
    return compiled("structure", json.dumps(part))


SOURCES: list[tuple[GrammarKind, str]] = [
    ("json_object", ""),
    ("regex", "(?i)[a-zß]+[^\\W]{2,5}|x"),
    ("choice", json.dumps(["b", "a", "ab"])),
    ("grammar", 'root ::= "a" (root | [b-z]{2,300})'),
    ("structure", json.dumps({"sequence": [{"free": ["<a>", "<b>"]}, {"schema": {"type": "object"}}]})),
    ("structure", json.dumps({"any_of": [{"control": "<a>"}, {"literal": "<b>"}]})),
    *(("json_schema", json.dumps(model.model_json_schema())) for model in MODELS[::5]),
]


def test_equal_sources_give_equal_networks_in_every_process() -> None:
    script = (
        "import hashlib, json, sys\n"
        "from asyncpage.grammar.compile import compile_source\n"
        "from asyncpage.grammar.source import GrammarSource\n"
        "whole = b''.join(compile_source(GrammarSource(*one)).to_bytes() for one in json.load(sys.stdin))\n"
        "print(hashlib.sha256(whole).hexdigest())\n"
    )
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            input=json.dumps(SOURCES),
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
        )
        whole = b"".join(compile_source(GrammarSource(*one)).to_bytes() for one in SOURCES)
        assert done.stdout.strip() == hashlib.sha256(whole).hexdigest()


def test_any_object_of_json_is_taken_and_nothing_else() -> None:
    walk = compiled("json_object")
    value = {"a": [1, -2.5e3, None, True, {"": {}}], 'é\n"\\😀': [[], {}], "c": 1e-05}
    for layout in ({}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}):
        assert walk.accepts(json.dumps(value, **layout).encode())  # type: ignore[arg-type]
    for text in ("[]", "1", '"a"', "{", '{"a"}', '{"a":1,}', "{a:1}", '{"a":01}', '{"a":+1}', '{"a":.5}', " {}", "{} "):
        assert not walk.accepts(text.encode())
    rng = random.Random(0)
    for _ in range(60):
        text = sample(walk, rng)
        if text is not None:
            assert isinstance(json.loads(text), dict)


def test_a_choice_is_one_of_its_texts() -> None:
    walk = compiled("choice", json.dumps(["yes", "yesterday", "no", "é", "yes"]))
    for text in ("yes", "yesterday", "no", "é"):
        assert walk.accepts(text.encode())
    for text in ("", "y", "yest", "noo", "e"):
        assert not walk.accepts(text.encode())
    assert compiled("choice", '[""]').accepts(b"")


@pytest.mark.parametrize(
    ("text", "param"), [("[]", ""), ("{}", ""), ("", ""), ('["a", 1]', "1"), ('["a", null]', "1"), ('["\\ud800"]', "")]
)
def test_choices_must_be_texts(text: str, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        compiled("choice", text)
    assert (raised.value.failure.code, raised.value.failure.param) == ("invalid_grammar", param)


def test_a_structure_puts_free_text_literals_and_schemas_together() -> None:
    call = {"sequence": [{"literal": "<t>"}, {"schema": {"type": "integer"}}, {"literal": "</t>"}]}
    walk = structure({"sequence": [{"free": ["<t>"]}, {"repeat": call, "min": 0, "max": 2}]})
    for text in ("", "hé <", "a<t>5</t>", "<t>5</t><t>-6</t>", "<<t>1</t>"):
        assert walk.accepts(text.encode())
    for text in ("<t>", "a<t>x</t>", "<t>1</t>b", "<t>1</t><t>2</t><t>3</t>", "<t>1</t"):
        assert not walk.accepts(text.encode())


@pytest.mark.parametrize("texts", [["aab"], ["ab", "ba"], ["a", "bb"], ["abab", "b"], ["aaa", "aab", "bb"]])
def test_free_text_contains_none_of_its_texts(texts: list[str]) -> None:
    walk, rng = structure({"free": texts}), random.Random(1)
    for _ in range(300):
        tried = "".join(rng.choice("abc") for _ in range(rng.randint(0, 8)))
        assert walk.accepts(tried.encode()) == (not any(text in tried for text in texts))


def test_a_control_token_is_its_text_or_what_stands_for_the_token_and_no_part_of_other_texts() -> None:
    token = b"\xff[CALL]\xff"
    walk = structure({"sequence": [{"free": ["[CALL]"]}, {"control": "[CALL]"}, {"schema": {"type": "string"}}]})
    for mark in (b"[CALL]", token):
        assert walk.accepts(b"one" + mark + b'"two"')
        assert not walk.accepts(b"one" + mark + b'"' + token + b'"')
    assert not walk.accepts(token + token + b'"two"')
    assert not structure({"literal": "[CALL]"}).accepts(token)


def test_free_text_without_limits_is_any_text_in_utf_8() -> None:
    walk = structure({"free": []})
    assert walk.accepts("any\x00 \U0010ffff".encode())
    assert not walk.accepts(b"\xff")
    assert not walk.accepts("é".encode()[:1])


def test_parts_of_a_structure_nest_and_choose() -> None:
    walk = structure(
        {"any_of": [{"literal": "a"}, {"repeat": {"any_of": [{"literal": "b"}, {"literal": ""}]}, "min": 2}]}
    )
    assert [text for text in (b"", b"a", b"b", b"bbbb", b"ab") if walk.accepts(text)] == [b"", b"a", b"b", b"bbbb"]


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ([], ""),
        ({}, ""),
        ({"literal": 5}, ""),
        ({"literal": "a", "min": 1}, ""),
        ({"sequence": [{"literal": "a"}, {"what": 1}]}, "sequence.1"),
        ({"repeat": {"literal": "a"}, "min": -1}, "min"),
        ({"any_of": [{"repeat": {"literal": "a"}, "max": True}]}, "any_of.0.max"),
        ({"free": [""]}, ""),
        ({"any_of": []}, ""),
        ({"sequence": [{"schema": {"properties": {"a": {"type": "x"}}}}]}, "sequence.0.schema.properties.a.type"),
        ({"any_of": [{"schema": {"not": {}}}]}, "any_of.0.schema.not"),
    ],
)
def test_a_malformed_part_is_refused_where_it_stands(part: Any, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        structure(part)
    assert raised.value.failure.param == param


def nested(opening: str, core: str, closing: str, depth: int) -> str:
    return opening * depth + core + closing * depth


def test_a_schema_of_a_hundred_levels_is_compiled() -> None:
    walk = compiled("json_schema", nested('{"type":"array","items":', "{}", "}", 100))
    assert walk.accepts(b"[" * 101 + b"]" * 101)


def test_a_text_that_never_ends_is_scanned_once() -> None:
    # A scan that starts again at every quotation mark would take minutes here.
    with pytest.raises(RequestError, match="must be JSON"):
        compile_source(GrammarSource("json_schema", '"\\' * 500_000))


HOSTILE: dict[str, tuple[GrammarKind, str]] = {
    "5,000 levels": ("json_schema", nested('{"type":"array","items":', "{}", "}", 5_000)),
    "100,000 levels": ("json_schema", nested('{"anyOf":[', "{}", "]}", 100_000)),
    "a million brackets": ("json_schema", "[" * 1_000_000),
    "a chain of references": (
        "json_schema",
        json.dumps({"$defs": {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(5_000)}, "$ref": "#/$defs/a0"}),
    ),
    "a doubling chain": (
        "json_schema",
        json.dumps(
            {"$defs": {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(40)} | {"a40": {}}}
            | {"$ref": "#/$defs/a0"}
        ),
    ),
    "many alternatives": (
        "json_schema",
        json.dumps({"allOf": [{"anyOf": [{"minLength": i}, {"maxLength": i}]} for i in range(30)]}),
    ),
    "a long enum": ("json_schema", json.dumps({"enum": list(range(10_001))})),
    "many patterns": (
        "json_schema",
        json.dumps({"type": "string", "allOf": [{"pattern": f"a{i}.*b{i}"} for i in range(30)]}),
    ),
    "a large step": ("json_schema", json.dumps({"type": "integer", "multipleOf": 1_999})),
    "a far bound": ("json_schema", '{"type": "integer", "minimum": ' + "9" * 399 + "}"),
    "many branches": (
        "json_schema",
        json.dumps({"oneOf": [{"type": "object", "properties": {"k": {"const": i}}} for i in range(200)]}),
    ),
    "long choices": ("choice", json.dumps(["x" * 50 + str(i) * 40 for i in range(10_000)])),
    "many choices": ("choice", json.dumps([str(i) for i in range(20_000)])),
    "long free text": ("structure", json.dumps({"free": ["x" * 5_000]})),
    "many parts": ("structure", json.dumps({"sequence": [{"literal": "a"}] * 20_000})),
    "a regex over a regex": ("regex", "((a{100}b){100}c){100}"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_source_ends_in_an_error_that_names_a_limit(name: str) -> None:
    with pytest.raises(RequestError, match=r"\d") as raised:
        compile_source(GrammarSource(*HOSTILE[name]))
    assert raised.value.failure.code == "grammar_too_large"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"allOf": [{"$ref": "#"}]},
        {"type": "object", "properties": {"a": {"oneOf": [{"$ref": "#/properties/a"}]}}},
    ],
)
def test_a_reference_to_itself_without_progress_is_refused(schema: Any) -> None:
    with pytest.raises(RequestError, match="refers to itself"):
        compiled("json_schema", json.dumps(schema))


@pytest.mark.parametrize(
    "text",
    ["", "{", "nul", '{"a": NaN}', "9" * 5_000, "1e999999999", '{"const": "\\ud800"}', "\ud800", "{}{}", "\x00"],
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as raised:
        compile_source(GrammarSource("json_schema", text))
    assert raised.value.failure.code == "invalid_grammar"


def test_large_counts_make_small_networks() -> None:
    for schema in (
        {"type": "string", "maxLength": 5_000},
        {"type": "string", "minLength": 1_000, "maxLength": 100_000},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 1_000},
        {"type": "array", "items": {"type": "string", "maxLength": 10**6}, "minItems": 10, "maxItems": 10**6},
    ):
        assert compile_source(GrammarSource("json_schema", json.dumps(schema))).states < 11_000
