"""What the proof of structured answers asks for: schemas over every keyword, and regular expressions.

`schemas` are written by hand, or made by pydantic from models of many shapes. `patterns` are written by hand, or drawn
from a generator with a seed, which writes what Python and the compiler both read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel

from tests.grammar.pydantic_models import MODELS

TREE = {
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "value": {"type": "integer", "minimum": 0, "maximum": 99},
                "left": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
                "right": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
            },
            "required": ["value", "left", "right"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/tree",
}


def _of(**properties: Any) -> dict[str, Any]:
    """An object that has these properties and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _formats(*names: str) -> dict[str, Any]:
    return _of(**{name.replace("-", "_"): {"type": "string", "format": name} for name in names})


def _branch(kind: str, **properties: Any) -> dict[str, Any]:
    return _of(kind={"const": kind}, **properties)


TEXT = {"type": "string", "maxLength": 12}
WHOLE = {"type": "integer", "minimum": -10, "maximum": 1000}

WRITTEN: dict[str, Any] = {
    # types
    "string": {"type": "string", "maxLength": 30},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "several types": {"type": ["integer", "boolean", "null"]},
    "all scalars": _of(a=TEXT, b={"type": "integer"}, c={"type": "number"}, d={"type": "boolean"}, e={"type": "null"}),
    "anything": _of(value=True),
    # enum and const
    "enum": {"enum": ["red", "green", 3, 2.5, None, True, [1, {"a": "b"}], {"deep": [None]}]},
    "enum of a type": {"type": "string", "enum": ["one", 2, "three", 'qu"ote', "back\\slash", "line\nend", "żółć 😀"]},
    "const": _of(version={"const": 2}, list={"const": [1, "x", {"y": None}]}, empty={"const": {}}),
    # numbers
    "bounded integer": {"type": "integer", "minimum": -17, "maximum": 4096},
    "outer bounds": _of(
        a={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 7},
        b={"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": 0.5},
    ),
    "bounded number": _of(a={"type": "number", "minimum": -90, "maximum": 90}, b={"type": "number", "minimum": 1.25}),
    "half bounds": _of(a={"type": "integer", "minimum": 100}, b={"type": "number", "maximum": -3.5}),
    "multiples": _of(
        a={"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
        b={"type": "number", "multipleOf": 0.25, "minimum": -10, "maximum": 10},
        c={"type": "integer", "multipleOf": 60},
    ),
    "widths": _of(
        a={"type": "integer", "format": "int32"},
        b={"type": "integer", "format": "uint8"},
        c={"type": "number", "format": "double"},
        d={"type": "integer", "format": "int64"},
    ),
    # strings
    "lengths": _of(a={"type": "string", "minLength": 3, "maxLength": 3}, b={"type": "string", "maxLength": 5}),
    "pattern": _of(
        zip={"type": "string", "pattern": r"^\d{5}(-\d{4})?$"},
        hex={"type": "string", "pattern": "^#[0-9a-f]{6}$"},
    ),
    "search pattern": {"type": "string", "pattern": "cat|dog", "maxLength": 20},
    "pattern and length": {"type": "string", "pattern": "^[a-zéß😀]+$", "minLength": 4, "maxLength": 9},
    "quoting pattern": {"type": "string", "pattern": r'^["\\/\t\n\u0001-\u0003]{2,6}$'},
    "times": _formats("date", "time", "date-time"),
    "durations": _formats("duration"),
    "identifiers": _formats("uuid", "uuid4"),
    "mail": _formats("email", "hostname"),
    "addresses": _formats("ipv4", "ipv6", "uri"),
    "pointers": {"type": "string", "format": "json-pointer", "maxLength": 20},
    "base64": {"type": "string", "format": "base64", "maxLength": 24},
    "format and pattern": {"type": "string", "format": "date", "pattern": "^20"},
    # arrays
    "array": {"type": "array", "items": WHOLE, "maxItems": 8},
    "counted array": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 4},
    "exact array": {"type": "array", "items": {"type": "boolean"}, "minItems": 5, "maxItems": 5},
    "tuple": {"type": "array", "prefixItems": [WHOLE, TEXT, {"type": "boolean"}], "items": False, "minItems": 3},
    "tuple and more": {"type": "array", "prefixItems": [TEXT], "items": WHOLE, "minItems": 1, "maxItems": 5},
    "matrix": {
        "type": "array",
        "items": {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 3},
        "maxItems": 3,
    },
    "empty array": {"type": "array", "maxItems": 0},
    # objects
    "optional properties": {
        "type": "object",
        "properties": {"a": WHOLE, "b": TEXT, "c": {"type": "boolean"}, "d": {"type": "null"}},
        "required": ["c"],
        "additionalProperties": False,
    },
    "all optional": {"type": "object", "properties": {"a": WHOLE, "b": TEXT}, "additionalProperties": False},
    "counted properties": {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in "abcdef"},
        "minProperties": 2,
        "maxProperties": 3,
        "additionalProperties": False,
    },
    "additional": {
        "type": "object",
        "properties": {"id": WHOLE},
        "required": ["id"],
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 4,
    },
    "map": {"type": "object", "additionalProperties": WHOLE, "maxProperties": 4},
    "named by pattern": {
        "type": "object",
        "patternProperties": {"^x_[a-z]{1,4}$": WHOLE, "^y[0-9]$": TEXT},
        "additionalProperties": False,
        "maxProperties": 4,
    },
    "names": {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z]{2,5}$"},
        "additionalProperties": {"enum": [1, 2]},
        "maxProperties": 3,
    },
    "required unknown": {"type": "object", "properties": {"a": WHOLE}, "required": ["a", "z"], "maxProperties": 2},
    "quoted names": _of(**{'a"b': WHOLE, "c\\d": WHOLE, "größe 😀": WHOLE, "": WHOLE, "line\nend": WHOLE}),
    "nested": _of(a=_of(b=_of(c=_of(d={"type": "array", "items": _of(e=WHOLE), "maxItems": 2})))),
    # combinations
    "any of": {"anyOf": [WHOLE, TEXT, {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}]},
    "one of kinds": {
        "oneOf": [
            _branch("circle", radius={"type": "number", "minimum": 0, "maximum": 100}),
            _branch("square", side=WHOLE),
            _branch("text", words={"type": "array", "items": TEXT, "maxItems": 3}),
        ]
    },
    "one of ranges": {"oneOf": [{"type": "integer", "maximum": 0}, {"type": "integer", "minimum": 50, "maximum": 60}]},
    "one of lengths": {
        "oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 4, "maxLength": 6}]
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 9}, "b": TEXT}, "required": ["b"], "maxProperties": 2},
        ]
    },
    "all of numbers": {"type": "number", "allOf": [{"minimum": 2}, {"exclusiveMaximum": 3}, {"multipleOf": 0.125}]},
    "references": {
        "definitions": {
            "name": TEXT,
            "pair": {"type": "array", "items": {"$ref": "#/definitions/name"}, "maxItems": 2},
        },
        **_of(first={"$ref": "#/definitions/name"}, both={"$ref": "#/definitions/pair"}),
    },
    "reference and more": {"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n", "minimum": 5, "maximum": 20},
    "tree": TREE,
    "list of itself": {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "boolean"}]}, "maxItems": 3},
    "notes": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/notes",
        "$comment": "none",
        "title": "Notes",
        "x-order": 3,
        **_of(a={"type": "integer", "description": "a digit", "default": 1, "examples": [2], "maximum": 9}),
    },
    "false beside": {"anyOf": [False, {"const": "only"}]},
    "no type": {"minimum": 3, "maximum": 5, "maxLength": 4, "maxItems": 1, "maxProperties": 1, "items": {"const": 1}},
    "twenty properties": {
        "type": "object",
        "properties": {f"property_{index:02}": [WHOLE, TEXT, {"type": "boolean"}][index % 3] for index in range(20)},
        "required": [f"property_{index:02}" for index in range(20) if index % 4],
        "additionalProperties": False,
    },
}  # fmt: skip


def schemas() -> list[tuple[str, Any, type[BaseModel] | None]]:
    """Name, schema, and the model that it was made from."""
    made = [(model.__name__, model.model_json_schema(), model) for model in MODELS]
    return [*((name, schema, None) for name, schema in WRITTEN.items()), *made]


WRITTEN_PATTERNS = [
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    r"(\+\d{1,2} )?\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4}",
    r"[A-Z]{2}\d{2}(?: [A-Z0-9]{4}){3}",
    r"^https?://[a-z]{2,8}\.(?:com|org)(?:/[a-z0-9_]{0,8}){0,2}$",
    r"[\w.]{1,12}@\w{2,9}\.[a-z]{2,4}",
    r"(?i)yes|no|maybe",
    r"(?i)straße|K\u212a|ſ",
    r"(?s)a.{3}b",
    r"(?i:select) [a-z]{1,6} FROM t",
    r"(?=.*\d)[a-z0-9]{4,8}",
    r"(?!0)\d{1,5}",
    r"(?!cat|dog)[a-z]{3,5}",
    r"(?P<year>19|20)(?P<rest>\d\d)",
    r"\$\d{1,3}(?:,\d{3})*\.\d\d",
    r"#(?:[0-9a-fA-F]{3}){1,2}",
    r"(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}",
    r"[\]\-\\^a]{3}",
    r"[^\n\r\"]{0,16}",
    r"\t\x41\u00e9\n?",
    r"[ąćęłńóśźż]{3,9}",
    r"[\u4e00-\u4e2f]{2,5}",
    r"[😀-😎]{1,4}!?",
    r"\{\"n\": -?\d{1,6}\}",
    r"(?:ab|a)(?:bc|c)",
    r"(?:a|aa|aaa){2,4}b",
    r"a??b{2,}?c+?",
    r"(?:(?:x{2}){2}){2}",
    r"()|z",
    r"^$|^a$",
    r"[.]{3}|…",
    r"\S{1,8}(?:\s\S{1,6}){0,3}",
    r"\W{2,4}",
    r"\D{1,6}",
    r".{0,20}",
    r"The answer is (?:yes|no|\d+)\.",
]

_CHARS = "abcxyzABC0129_ -éżß日😀"
_ESCAPED = [f"\\{char}" for char in (*".+(]\\*?{|^$/nt", "x41")]
_CLASSES = [*(f"\\{char}" for char in "dwsDWS"), "."]
_RANGES = [
    "a-f",
    "A-Z",
    "0-9",
    "x-z",
    "à-ö",
    "α-ω",
    "一-龥",
    "😀-😎",
    r"\d",
    r"\s",
    r"\w",
    r"\-",
    r"\]",
    r"\u00e9",
    "_",
    " ",
]
_COUNTS = ["?", "*", "+", "{2}", "{0,2}", "{1,3}", "{2,}", "{3,5}", "??", "*?", "+?", "{1,2}?"]


def patterns(count: int, seed: int) -> list[str]:
    """As many patterns: those that are written here, then drawn ones."""
    draw = random.Random(seed)
    return [*WRITTEN_PATTERNS, *(_pattern(draw) for _ in range(count - len(WRITTEN_PATTERNS)))][:count]


def _pattern(draw: random.Random) -> str:
    flags = draw.choice(["", "", "", "(?i)", "(?s)", "(?is)"])
    body = _options(draw, 2)
    if draw.random() < 0.1:
        ahead = _atom(draw, 0)
        is_wanted = draw.random() < 0.5 or ahead == "."
        return f"{flags}(?{'=' if is_wanted else '!'}{ahead})(?:{ahead}|.)(?:{body})"
    if draw.random() < 0.2:
        return f"{flags}^(?:{body})$"
    return flags + body


def _options(draw: random.Random, depth: int) -> str:
    return "|".join(_sequence(draw, depth) for _ in range(draw.choice([1, 1, 2, 3])))


def _sequence(draw: random.Random, depth: int) -> str:
    return "".join(_atom(draw, depth) + _count(draw) for _ in range(draw.randint(1, 4)))


def _count(draw: random.Random) -> str:
    return draw.choice(_COUNTS) if draw.random() < 0.4 else ""


def _atom(draw: random.Random, depth: int) -> str:
    kinds: Sequence[Callable[[], str]] = [
        lambda: draw.choice(_CHARS),
        lambda: draw.choice(_CHARS),
        lambda: draw.choice(_ESCAPED),
        lambda: draw.choice(_CLASSES),
        lambda: f"[{'^' * draw.randint(0, 1)}{''.join(draw.sample(_RANGES, draw.randint(1, 3)))}]",
        lambda: f"({draw.choice(['', '?:', f'?P<g{draw.getrandbits(30)}>'])}{_options(draw, depth - 1)})",
    ]
    return draw.choice(kinds if depth else kinds[:-1])()
