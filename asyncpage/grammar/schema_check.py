"""Whether a single value is valid for a schema: for the values of `enum` and `const`, and for names of properties.

The compiler keeps the listed values that pass; `schema_exclusive` asks whether a branch's value is another's too.

INVARIANT: a value passes exactly when it is valid, formats counted as conditions.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any, Protocol

from asyncpage.grammar.formats import format_texts
from asyncpage.grammar.regex import search
from asyncpage.grammar.schema_assertions import Assertions
from asyncpage.grammar.schema_shape import Shape
from asyncpage.grammar.schema_site import Site
from asyncpage.grammar.schema_value import key_of, types_of


class Resolver(Protocol):
    """Gives the alternatives of sites that must all hold."""

    def of_all(self, sites: Iterable[Site]) -> tuple[tuple[Assertions, ...], ...]: ...


def is_valid(value: Any, sites: Iterable[Site], resolver: Resolver) -> bool:
    """Whether all these sites hold for the value. Errors: 400 of what they refer to."""
    return any(passes(value, Shape(one), resolver) for one in resolver.of_all(sites))


def passes(value: Any, shape: Shape, resolver: Resolver) -> bool:
    """Whether one alternative holds for the value."""
    types, key = types_of(value), key_of(value)
    for one in shape.assertions:
        if not one.types & types or (one.values is not None and key not in one.values):
            return False
    match value:
        case bool() | None:
            return True
        case str():
            return _string_passes(value, shape)
        case int() | Decimal():
            return _number_passes(Decimal(value), shape)
        case list():
            return _list_passes(value, shape, resolver)
        case dict():
            return _object_passes(value, shape, resolver)
    raise AssertionError(f"no JSON value: {type(value).__name__}")


def listed_values(shape: Shape, resolver: Resolver) -> list[Any]:
    """The values of a shape that lists them, and the booleans and null of one that does not."""
    if shape.values is not None:
        return [value for value in shape.values if passes(value, shape, resolver)]
    booleans = [True, False] if "boolean" in shape.types else []
    return [*booleans, None] if "null" in shape.types else booleans


def _string_passes(text: str, shape: Shape) -> bool:
    return (
        _is_within(len(text), shape.length)
        and all(search(pattern, path).matches(text) for pattern, path in shape.patterns.items())
        and all(format_texts(name).matches(text) for name in shape.formats)
    )


def _number_passes(number: Decimal, shape: Shape) -> bool:
    low, high = shape.low, shape.high
    if low is not None and (number < low[0] or (low[1] and number == low[0])):
        return False
    if high is not None and (number > high[0] or (high[1] and number == high[0])):
        return False
    return all(Fraction(number) % Fraction(step) == 0 for step in shape.multiples)


def _list_passes(items: list[Any], shape: Shape, resolver: Resolver) -> bool:
    return (
        _is_within(len(items), shape.item_counts)
        and (shape.unique_path is None or len(set(map(key_of, items))) == len(items))
        and all(is_valid(item, shape.item_sites(index), resolver) for index, item in enumerate(items))
    )


def _object_passes(entries: dict[str, Any], shape: Shape, resolver: Resolver) -> bool:
    return (
        _is_within(len(entries), shape.property_counts)
        and entries.keys() >= set(shape.required)
        and entries.keys().isdisjoint(shape.forbidden)
        and all(is_valid(name, shape.names, resolver) for name in entries)
        and all(is_valid(value, shape.property_sites(name), resolver) for name, value in entries.items())
    )


def _is_within(count: int, bounds: tuple[int, int | None]) -> bool:
    low, high = bounds
    return low <= count and (high is None or count <= high)
