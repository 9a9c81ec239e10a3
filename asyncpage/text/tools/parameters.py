"""The parameters of a tool one by one, for formats that write each argument by itself.

The parsers of such formats build their constraints from it.

INVARIANT: a schema that says more of the arguments than a schema for each of them can say is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asyncpage.errors import RequestError
from asyncpage.text.tools.tool import Tool

# What of an object's schema is kept when each argument is held to its own, or says nothing of what is allowed.
_KEPT = frozenset({"type", "properties", "required", "$defs", "definitions", "additionalProperties"})
_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter and the schema of its value, whole in itself."""

    name: str
    schema: Mapping[str, Any]
    is_required: bool


def held_parameters(tool: Tool, *, is_held: bool) -> tuple[Parameter, ...]:
    """The parameters of `tool` in the order of its schema; with values of any kind unless it `is_held` to that.

    Errors: `RequestError` (400, code "unsupported") for a keyword that cannot be kept.
    """
    found, properties = tool.schema, tool.properties
    if not is_held:
        return tuple(Parameter(name, {}, False) for name in properties)
    wrong = sorted(found.keys() - _KEPT - _ANNOTATIONS)
    required = found.get("required", [])
    for keyword, is_right in (
        ("type", found.get("type", "object") == "object"),
        ("properties", isinstance(found.get("properties", {}), Mapping)),
        ("required", isinstance(required, list) and all(isinstance(name, str) for name in required)),
    ):
        wrong += () if is_right else (keyword,)
    if wrong:
        what = wrong[0]
        raise RequestError(
            f"{what}: in the format in which this model calls tools, the parameters of {tool.name} can only be held to "
            "a schema with properties",
            param=what,
            code="unsupported",
        )
    for name in required:
        if properties.get(name, False) is False:
            text = f"required: the parameters of {tool.name} allow no property {name!r}"
            raise RequestError(text, param="required", code="unsupported")
    shared = {key: found[key] for key in ("$defs", "definitions") if key in found}
    return tuple(
        Parameter(name, {**shared, **schema} if isinstance(schema, Mapping) else {}, name in required)
        for name, schema in properties.items()
        if schema is not False
    )
