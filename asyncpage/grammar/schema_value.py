"""JSON values as schemas see them: which types a value is of, and when two are equal.

INVARIANT: numbers are equal by value, whatever their spelling, and no boolean is a number.
"""

from __future__ import annotations

from collections.abc import Hashable
from decimal import Decimal
from typing import Any

TYPES = frozenset({"object", "array", "string", "number", "boolean", "null"})
"""All that a value can be. A set of types that holds "number" does not name "integer" beside it."""


def types_of(value: Any) -> frozenset[str]:
    """The names of the types that a value is of: a whole number is of two."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
        case dict():
            return frozenset({"object"})
        case Decimal() if value != value.to_integral_value():
            return frozenset({"number"})
    return frozenset({"number", "integer"})


def key_of(value: Any) -> Hashable:
    """Equal for values that are equal in JSON, and for them alone. It recurses; a document's depth is bounded."""
    match value:
        case bool():
            return ("boolean", value)
        case list():
            return ("array", tuple(map(key_of, value)))
        case dict():
            return ("object", frozenset((name, key_of(member)) for name, member in value.items()))
    hashable: Hashable = value  # a string, a number, or None
    return hashable


def narrowed(left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
    """The types that both allow: a number that must also be whole is an integer."""
    common = left & right
    numeric = {"number", "integer"}
    if "number" not in common and left & numeric and right & numeric:
        common |= {"integer"}
    return common
