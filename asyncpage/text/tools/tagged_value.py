"""A value between two tags, without quotes: what it is by its schema, and what a constraint can make of that schema.

The parser of tagged calls reads values and builds constraints with it.

INVARIANT: what `value_part` allows, `json_value` reads as a value that the schema allows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from asyncpage.errors import RequestError
from asyncpage.text.tools.part import Part, any_of, free, literal
from asyncpage.text.tools.part import schema as schema_part
from asyncpage.text.tools.python_literal import to_json

ENDS = ("</parameter>", "</function>", "<parameter=")
TEXT_ONLY = frozenset({"string"})

# What says nothing of the values of the schema that it stands in.
_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "$comment", "deprecated", "$defs", "definitions"}
)
_KINDS: Mapping[type, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null",
}  # fmt: skip


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str] | None:
    """The types that a schema allows, None for any. `root`: where its references lead."""
    types: frozenset[str] = frozenset()
    for found in _alternatives(schema, root):
        if not _branches(found):
            own = _own_types(found)
            if own is None:
                return None
            types |= own
    return types or None


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
    types = types_of(schema, root)
    if types is None or "string" not in types:
        return schema_part(schema)
    shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
    parts = []
    for found in _alternatives(schema, root):
        if _branches(found):
            _check_unsaid(found, {"anyOf", "oneOf"})
        else:
            parts.append(_part(found, shared))
    return any_of(*parts)


def _part(schema: Mapping[str, Any], shared: Mapping[str, Any]) -> Part:
    """The values that one alternative allows. `shared`: the definitions that it may refer to."""
    types = _own_types(schema)
    if types is None or "string" not in types:
        return schema_part({**shared, **schema})
    named = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(named, list):
        return any_of(*(literal(_named(value)) for value in named))
    _check_unsaid(schema, {"type"})
    others = sorted(types - TEXT_ONLY)
    return any_of(free_value(), *(schema_part({"type": kind}) for kind in others))


def _check_unsaid(schema: Mapping[str, Any], said: Set[str]) -> None:
    """Errors: `RequestError` for a keyword beside those that are `said` which would be lost."""
    for key in sorted(schema.keys() - _ANNOTATIONS - said):
        raise RequestError(
            f"{key}: in the format in which this model calls tools, a string is written without quotes, and {key} "
            "cannot be kept for it",
            param=key,
            code="unsupported",
        )


def _named(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if any(end in text for end in ENDS):
        raise RequestError(
            "enum: a value holds a tag of the format in which this model calls tools", param="enum", code="unsupported"
        )
    return text


def _alternatives(schema: Any, root: Mapping[str, Any]) -> Iterator[Any]:
    """What a schema's references and branches lead to, in their order.

    Each comes once, however many ways lead to it: there can be exponentially many.
    """
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Mapping):
            if id(found) in seen:
                continue
            seen.add(id(found))
            if isinstance(found.get("$ref"), str):
                waiting.append(_target(found["$ref"], root))
                continue
            waiting += reversed(_branches(found))
        yield found


def _branches(schema: Any) -> Sequence[Any]:
    """The alternatives that a schema consists of; none where it says itself what it allows."""
    if not isinstance(schema, Mapping) or _own_types(schema) is not None:
        return ()
    branches = schema.get("anyOf", schema.get("oneOf"))
    return branches if isinstance(branches, list) else ()


def _own_types(schema: Any) -> frozenset[str] | None:
    """The types that a schema allows by what it says itself, None where it says nothing of them."""
    if not isinstance(schema, Mapping):
        return None
    kinds, named = schema.get("type"), schema.get("enum")
    if isinstance(kinds, str):
        return frozenset({kinds})
    if isinstance(kinds, list):
        return frozenset(kind for kind in kinds if isinstance(kind, str))
    if isinstance(named, list):
        return frozenset(_KINDS[type(value)] for value in named)
    return frozenset({_KINDS[type(schema["const"])]}) if "const" in schema else None


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference within `root` leads to."""
    found: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _has_type(value: Any, types: frozenset[str]) -> bool:
    kind = _KINDS[type(value)]
    if kind == "number" and value.is_integer():
        return not types.isdisjoint(("number", "integer"))
    return kind in types or (kind == "integer" and "number" in types)
