"""Words to write JSON Schemas with: short enough that a list of fields reads as one.

The parts of the document are written with them.

INVARIANT: a property that is not required may be null, which means the same as leaving it out; fields that are not
named are allowed and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]


def string(text: str = "", **more: Any) -> Json:
    return _described({"type": "string", **more}, text)


def integer(text: str = "", low: int | None = None, high: int | None = None, **more: Any) -> Json:
    return _described({"type": "integer", **_bounds(low, high), **more}, text)


def number(text: str = "", low: float | None = None, high: float | None = None, **more: Any) -> Json:
    return _described({"type": "number", **_bounds(low, high), **more}, text)


def boolean(text: str = "", **more: Any) -> Json:
    return _described({"type": "boolean", **more}, text)


def anything(text: str = "", **more: Any) -> Json:
    """Any value but null, which stands for none."""
    return _described({"type": ["string", "number", "boolean", "array", "object"], **more}, text)


def word(text: str, *words: str, **more: Any) -> Json:
    """One of these words."""
    return _described({"type": "string", "enum": list(words), **more}, text)


def array(items: Json, text: str = "", low: int | None = None, high: int | None = None, **more: Any) -> Json:
    found: Json = {"type": "array", "items": items}
    if low is not None:
        found["minItems"] = low
    if high is not None:
        found["maxItems"] = high
    return _described({**found, **more}, text)


def any_of(text: str, *choices: Json, **more: Any) -> Json:
    return _described({"anyOf": list(choices), **more}, text)


def mapping(values: Json, text: str = "", **more: Any) -> Json:
    """An object of any names with values of one kind."""
    return _described({"type": "object", "additionalProperties": values, **more}, text)


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def request(properties: Mapping[str, Json], *required: str, text: str = "", **more: Any) -> Json:
    """An object that clients send: whatever is not required may be null."""
    shown = {name: value if name in required else optional(value) for name, value in properties.items()}
    return _object(shown, required, text, more)


def answer(properties: Mapping[str, Json], *, leaves_out: Sequence[str] = (), text: str = "", **more: Any) -> Json:
    """An object that the server sends: everything is there, but for what `leaves_out` names."""
    return _object(properties, [name for name in properties if name not in leaves_out], text, more)


def optional(schema: Json) -> Json:
    """The same, or null."""
    if None in schema.get("enum", ()):
        return schema
    if "enum" in schema:
        schema = {**schema, "enum": [*schema["enum"], None]}
    match schema.get("type"):
        case str() as kind:
            return {**schema, "type": [kind, "null"]}
        case list() as kinds if "null" in kinds:
            return schema
        case list() as kinds:
            return {**schema, "type": [*kinds, "null"]}
        case _ if "anyOf" in schema:
            return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
        case _:
            return {"anyOf": [schema, {"type": "null"}]}


def refused(what: str) -> Json:
    """A field whose feature the server lacks: whatever asks for it is a 400 that names it."""
    return {"enum": [None, False], "description": f"Not supported ({what}): refused unless null or false."}


def _object(properties: Mapping[str, Json], required: Sequence[str], text: str, more: Mapping[str, Any]) -> Json:
    found: Json = {"type": "object", "properties": dict(properties)}
    if required:
        found["required"] = list(required)
    return _described({**found, **more}, text)


def _bounds(low: float | None, high: float | None) -> Json:
    found = {"minimum": low, "maximum": high}
    return {name: value for name, value in found.items() if value is not None}


def _described(schema: Json, text: str) -> Json:
    return {**schema, "description": text} if text else schema
