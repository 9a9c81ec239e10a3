"""Where in a request the schema stands that a structure could not be made of.

`compile_call` asks, because the compiler knows a structure by its parts and the client by the fields that it sent.

INVARIANT: a place that is told is one in a schema of the request's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_SHARED = ("$defs", "definitions")


def place_in_request(structure: str, path: str, schemas: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The dotted path in the request of what is at `path` in a structure; None where it is in no schema of `schemas`.

    `structure`: its JSON text. `schemas`: what it was made of, by the fields that they came in. Of equal ones the
    first is told, which is as wrong as the other.
    """
    found, inside = _schema_at(json.loads(structure), path.split("."))
    if found is None:
        return None
    for place, schema in schemas.items():
        for way, own in _parts_of(schema):
            if found == own:
                # Definitions go along with each argument that a format writes by itself; they stand beside it.
                ways = inside if inside[:1] and inside[0] in _SHARED else [*way, *inside]
                return ".".join((place, *ways))
    return None


def _schema_at(part: Any, path: list[str]) -> tuple[Any, list[str]]:
    """The schema that `path` leads into, and what of the path is inside of it."""
    for at, step in enumerate(path):
        match part:
            case list() if step.isdecimal() and int(step) < len(part):
                part = part[int(step)]
            case dict() if step in part:
                part = part[step]
                if step == "schema":
                    return part, path[at + 1 :]
            case _:
                break
    return None, []


def _parts_of(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """What formats make parts of: a schema as it is, or each of its properties with the definitions it may refer to."""
    yield (), schema
    properties = schema.get("properties")
    shared = {name: schema[name] for name in _SHARED if name in schema}
    for name, own in properties.items() if isinstance(properties, Mapping) else ():
        if isinstance(own, Mapping):
            yield ("properties", name), {**shared, **own}
