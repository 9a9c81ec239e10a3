"""Bodies made from the API's own description: with every field, in every form that a field may have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from asyncpage.server.openapi.document import openapi

DOCUMENT = openapi()
SCHEMAS: Mapping[str, Any] = DOCUMENT["components"]["schemas"]


def resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    return schema


def field_names(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The dotted path of every field; `*` stands for places in lists."""
    schema = resolved(schema)
    for part in schema.get("anyOf", ()):
        yield from field_names(part, path)
    if "items" in schema:
        yield from field_names(schema["items"], f"{path}.*" if path else "*")
    for name, field in schema.get("properties", {}).items():
        full = f"{path}.{name}" if path else name
        yield full
        yield from field_names(field, full)


def specimens(schema: Mapping[str, Any]) -> list[Any]:
    """Values that fit: the first has every field; each further one has one field in another form."""
    schema = resolved(schema)
    if "properties" in schema:
        forms = {name: specimens(field) for name, field in schema["properties"].items()}
        whole = {name: values[0] for name, values in forms.items()}
        others = [{**whole, name: value} for name, values in forms.items() for value in values[1:]]
        return [whole, *others]
    if "anyOf" in schema:
        return [value for part in schema["anyOf"] if part != {"type": "null"} for value in specimens(part)]
    if "enum" in schema:
        return [value for value in schema["enum"] if value is not None] or [None]
    if "items" in schema and {"properties", "anyOf"} & resolved(schema["items"]).keys():
        return [specimens(schema["items"])]
    if schema.get("examples"):
        return [schema["examples"][0]]
    kinds = schema.get("type", "null")
    kind = kinds if isinstance(kinds, str) else kinds[0]
    match kind:
        case "string":
            return ["a"]
        case "integer" | "number":
            return [max(1, schema.get("minimum", 1))]
        case "boolean":
            return [False, True]
        case "array":
            return [[specimens(schema["items"])[0]]]
        case "object":
            return [{}]
        case _:
            return [None]


def check(value: Any, schema: Any) -> None:
    """Errors: jsonschema's own unless `value` fits a schema of the document."""
    from jsonschema import Draft202012Validator

    Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(value)
