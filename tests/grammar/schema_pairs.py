"""Schemas with values that are valid for them, drawn together: a value is made by the meaning, not by the compiler."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Pair = tuple[dict[str, Any], Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=6)
_NAMES = st.sampled_from(["a", "b", "name", "größe", 'quo"te', "x y", "", "back\\slash", "é😀"])
_NUMBERS = st.integers(-(10**6), 10**6)


@st.composite
def pairs(draw: Draw, depth: int = 2) -> Pair:
    """A schema and a value that it allows."""
    kinds: list[Callable[[Draw, int], Pair]] = [
        _string, _integer, _number, _constant, _enum, _null, _boolean, _format, _multiple, _counted_string
    ]  # fmt: skip
    if depth:
        kinds += [_object, _object, _array, _tuple, _any_of, _reference, _map, _all_of, _one_of]
    schema, value = draw(st.sampled_from(kinds))(draw, depth)
    if draw(st.booleans()):
        schema = {"title": "T", **schema, "description": "what it is", "default": None}
    return schema, value


def _string(draw: Draw, depth: int) -> Pair:
    return {"type": "string"}, draw(_TEXT)


def _counted_string(draw: Draw, depth: int) -> Pair:
    text = draw(_TEXT)
    low = draw(st.integers(0, len(text)))
    return {"type": "string", "minLength": low, "maxLength": len(text) + draw(st.integers(0, 3))}, text


def _integer(draw: Draw, depth: int) -> Pair:
    value = draw(_NUMBERS)
    schema: dict[str, Any] = {"type": "integer"}
    if draw(st.booleans()):
        schema["minimum"] = value - draw(st.integers(0, 1000))
    if draw(st.booleans()):
        schema["exclusiveMaximum"] = value + draw(st.integers(1, 1000))
    return schema, value


def _number(draw: Draw, depth: int) -> Pair:
    places = draw(st.integers(0, 3))
    value = draw(_NUMBERS) / 10**places
    schema: dict[str, Any] = {"type": "number"}
    if draw(st.booleans()):
        schema["exclusiveMinimum"] = value - draw(st.sampled_from([0.001, 1, 12.5]))
    if draw(st.booleans()):
        schema["maximum"] = value + draw(st.sampled_from([0, 0.25, 100]))
    return schema, value


def _multiple(draw: Draw, depth: int) -> Pair:
    step = draw(st.sampled_from([2, 5, 7, 0.5, 0.25]))
    value = draw(st.integers(-1000, 1000)) * step
    kind = "integer" if value == int(value) and draw(st.booleans()) else "number"
    return {"type": kind, "multipleOf": step}, int(value) if value == int(value) else value


def _constant(draw: Draw, depth: int) -> Pair:
    value = draw(st.one_of(_TEXT, _NUMBERS, st.booleans(), st.none(), st.lists(_NUMBERS, max_size=2)))
    return {"const": value}, value


def _enum(draw: Draw, depth: int) -> Pair:
    values = draw(st.lists(st.one_of(_TEXT, _NUMBERS), min_size=1, max_size=5))
    return {"enum": values}, draw(st.sampled_from(values))


def _null(draw: Draw, depth: int) -> Pair:
    return {"type": "null"}, None


def _boolean(draw: Draw, depth: int) -> Pair:
    return {"type": "boolean"}, draw(st.booleans())


def _format(draw: Draw, depth: int) -> Pair:
    name = draw(st.sampled_from(["date", "date-time", "time", "uuid", "ipv4", "ipv6", "email"]))
    zone = datetime.timezone(datetime.timedelta(minutes=draw(st.integers(-1439, 1439))))
    values: dict[str, st.SearchStrategy[str]] = {
        "date": st.dates().map(str),
        "date-time": st.datetimes(timezones=st.just(zone)).map(datetime.datetime.isoformat),
        "time": st.times().map(lambda time: time.replace(tzinfo=zone).isoformat()),
        "uuid": st.uuids().map(uuid.UUID.__str__),
        "ipv4": st.ip_addresses(v=4).map(str),
        "ipv6": st.ip_addresses(v=6).map(str),
        "email": st.from_regex(r"[a-z0-9]{1,8}(\.[a-z]{1,8})?@[a-z][a-z0-9]{0,8}\.(com|org|io)", fullmatch=True),
    }
    return {"type": "string", "format": name}, draw(values[name])


def _object(draw: Draw, depth: int) -> Pair:
    names = draw(st.lists(_NAMES, unique=True, max_size=4))
    properties, value, required = {}, {}, []
    for name in names:
        properties[name], inner = draw(pairs(depth - 1))
        is_present = draw(st.booleans())
        if is_present:
            value[name] = inner
            if draw(st.booleans()):
                required.append(name)
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if draw(st.booleans()):
        schema["additionalProperties"] = False
    if draw(st.booleans()):
        schema["minProperties"] = draw(st.integers(0, len(value)))
        schema["maxProperties"] = len(value) + draw(st.integers(0, 1))
    return schema, value


def _map(draw: Draw, depth: int) -> Pair:
    schema, inner = draw(pairs(depth - 1))
    declared, other = draw(pairs(depth - 1))
    names = draw(st.lists(st.text(alphabet="abcxyz", max_size=4).filter(lambda name: name != "abc"), unique=True))
    value = dict.fromkeys(names[:3], inner)
    if draw(st.booleans()):
        return {"type": "object", "additionalProperties": schema}, value
    return {
        "type": "object",
        "properties": {"abc": declared},
        "additionalProperties": schema,
    }, {"abc": other, **value}


def _array(draw: Draw, depth: int) -> Pair:
    schema, value = draw(pairs(depth - 1))
    count = draw(st.integers(0, 3))
    bounds = {"minItems": draw(st.integers(0, count)), "maxItems": count + draw(st.integers(0, 2))}
    return {"type": "array", "items": schema, **(bounds if draw(st.booleans()) else {})}, [value] * count


def _tuple(draw: Draw, depth: int) -> Pair:
    drawn = draw(st.lists(pairs(depth - 1), min_size=1, max_size=3))
    schema = {"type": "array", "prefixItems": [one for one, _ in drawn], "items": False, "minItems": len(drawn)}
    return schema, [value for _, value in drawn]


def _any_of(draw: Draw, depth: int) -> Pair:
    drawn = draw(st.lists(pairs(depth - 1), min_size=1, max_size=3))
    return {"anyOf": [schema for schema, _ in drawn]}, draw(st.sampled_from([value for _, value in drawn]))


def _one_of(draw: Draw, depth: int) -> Pair:
    """Objects that a constant tells apart, as tagged unions are."""
    drawn = draw(st.lists(pairs(depth - 1), min_size=2, max_size=3))
    branches = [
        {"type": "object", "properties": {"kind": {"const": f"k{index}"}, "of": schema}, "required": ["of"]}
        for index, (schema, _) in enumerate(drawn)
    ]
    index = draw(st.integers(0, len(drawn) - 1))
    return {"oneOf": branches}, {"kind": f"k{index}", "of": drawn[index][1]}


def _all_of(draw: Draw, depth: int) -> Pair:
    left, value = draw(pairs(depth - 1))
    right, other = draw(pairs(depth - 1))
    return {
        "type": "object",
        "allOf": [
            {"properties": {"left": left}, "required": ["left"]},
            {"properties": {"right": right}},
            {"properties": {"left": True}},
        ],
    }, {"left": value, "right": other}


def _reference(draw: Draw, depth: int) -> Pair:
    """A list of lists; the reference leads to the whole document, so this schema must be the whole."""
    schema, value = draw(pairs(depth - 1))
    return {"type": "array", "prefixItems": [schema], "items": {"type": "array", "maxItems": 0}}, [value, []]
