"""A value between two tags, without quotes: what it is by its schema, and what a constraint can make of that schema.

The parser of tagged calls reads values and builds constraints with it.

INVARIANT: what `value_part` allows, `json_value` reads as a value that the schema allows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from asyncpage.errors import RequestError
from asyncpage.text.tools.part import Part, any_of, free, literal
from asyncpage.text.tools.part import schema as schema_part
from asyncpage.text.tools.python_literal import to_json

ENDS = ("</parameter>", "</function>", "<parameter=")
TEXT_ONLY = frozenset({"string"})

MOST_REFERENCES = 16

_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "$comment", "deprecated", "type"})
_KINDS: Mapping[type, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null",
}  # fmt: skip


def types_of(schema: Any, root: Mapping[str, Any], references: int = 0) -> frozenset[str] | None:
    """The types that a schema allows, None for any. `root`: where its references lead."""
    schema = _resolved(schema, root, references)
    if not isinstance(schema, Mapping):
        return None
    kinds, named = schema.get("type"), schema.get("enum")
    branches = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(kinds, str):
        return frozenset({kinds})
    if isinstance(kinds, list):
        return frozenset(kind for kind in kinds if isinstance(kind, str))
    if isinstance(named, list):
        return frozenset(_KINDS[type(value)] for value in named)
    if "const" in schema:
        return frozenset({_KINDS[type(schema["const"])]})
    if not isinstance(branches, list) or references > MOST_REFERENCES:
        return None
    types: frozenset[str] = frozenset()
    for branch in branches:
        found = types_of(branch, root, references + 1)
        if found is None:
            return None
        types |= found
    return types


def json_value(text: str, types: frozenset[str] | None) -> str:
    """The JSON of what stands between two tags: a value of one of `types` if it is one, else a string."""
    value = to_json(text)
    if value is not None and (types is None or _has_type(json.loads(value), types - TEXT_ONLY)):
        return value
    return json.dumps(text, ensure_ascii=False)


def free_value() -> Part:
    """Any value."""
    return free(*ENDS)


def value_part(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Part:
    """The values that a parameter's schema allows. `schema` may refer to definitions of `root`.

    Errors: `RequestError` (400, code "unsupported") when it says more of a string than can be kept without quotes.
    """
    return _part(schema, root, 0)


def _part(given: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Part:
    schema = _resolved(given, root, depth)
    types = types_of(schema, root)
    if types is None or "string" not in types:
        return schema_part(given)
    named = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(named, list):
        return any_of(*(literal(_named(value)) for value in named))
    for key in ("anyOf", "oneOf"):
        if key in schema and depth <= MOST_REFERENCES:
            shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
            return any_of(*(_part({**shared, **branch}, root, depth + 1) for branch in schema[key]))
    for key in sorted(schema.keys() - _ANNOTATIONS - {"$defs", "definitions"}):
        raise RequestError(
            f"{key}: in the format in which this model calls tools, a string is written without quotes, and {key} "
            "cannot be kept for it",
            param=key,
            code="unsupported",
        )
    others = sorted(types - TEXT_ONLY)
    return any_of(free_value(), *(schema_part({"type": kind}) for kind in others))


def _named(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if any(end in text for end in ENDS):
        raise RequestError(
            "enum: a value holds a tag of the format in which this model calls tools", param="enum", code="unsupported"
        )
    return text


def _resolved(schema: Any, root: Mapping[str, Any], references: int) -> Any:
    """What a schema's reference within `root` leads to."""
    while isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str) and references <= MOST_REFERENCES:
        references += 1
        found: Any = root
        for step in schema["$ref"].removeprefix("#").strip("/").split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        schema = found
    return schema


def _has_type(value: Any, types: frozenset[str]) -> bool:
    kind = _KINDS[type(value)]
    if kind == "number" and value.is_integer():
        return not types.isdisjoint(("number", "integer"))
    return kind in types or (kind == "integer" and "number" in types)
