"""Typed reading of a body's fields: each error names the field by its dotted path and says what was found.

The body readers ask for fields by name and type. null means "not given", whole floats count as integers, booleans
do not, and what nobody asked for is left in `unread`, that of the objects inside included.

INVARIANT: a value that leaves a reader has the type that was asked for, and every number is finite and below 2^63.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from asyncpage.errors import RequestError
from asyncpage.server.failure import invalid
from asyncpage.server.json_body import kind_of

Item = TypeVar("Item")

_INT_LOW, _INT_HIGH = -(2**63), 2**63 - 1


class Fields:
    """The fields of one JSON object at `path` of the body ("" for the body itself)."""

    def __init__(self, body: dict[str, Any], path: str = "") -> None:
        self._body = body
        self._path = path
        self._read: set[str] = set()
        self._inner: list[Fields] = []

    def value(self, name: str) -> Any:
        """The raw value, None when absent."""
        self._read.add(name)
        return self._body.get(name)

    def name_of(self, name: str) -> str:
        """The dotted path of a field, as errors show it."""
        return f"{self._path}.{name}" if self._path else name

    def names(self) -> tuple[str, ...]:
        """Every name that the object has."""
        return tuple(self._body)

    def required(self, name: str) -> Any:
        """Errors: 400 when the field is absent or null."""
        value = self.value(name)
        if value is None:
            raise invalid(f"{self.name_of(name)} is required", param=self.name_of(name))
        return value

    def integer(self, name: str, *, low: int = _INT_LOW, high: int = _INT_HIGH) -> int | None:
        """An integer within [low, high], or None when not given."""
        value = self.value(name)
        return None if value is None else to_integer(value, self.name_of(name), low=low, high=high)

    def number(self, name: str) -> float | None:
        """A finite number, or None when not given."""
        value = self.value(name)
        return None if value is None else to_number(value, self.name_of(name))

    def boolean(self, name: str) -> bool | None:
        value = self.value(name)
        if value is not None and not isinstance(value, bool):
            raise wrong_type(self.name_of(name), "true or false", value)
        return value

    def string(self, name: str, *, longest: int) -> str | None:
        """A string of at most `longest` characters, or None when not given."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise wrong_type(self.name_of(name), "a string", value)
        if len(value) > longest:
            raise invalid(
                f"{self.name_of(name)} may have at most {longest} characters, got {len(value)}",
                param=self.name_of(name),
            )
        return value

    def required_string(self, name: str, *, longest: int) -> str:
        """A string of one to `longest` characters. Errors: 400, also when it is not given."""
        value = self.string(name, longest=longest)
        if not value:
            raise invalid(f"{self.name_of(name)} is required", param=self.name_of(name))
        return value

    def mapping(self, name: str) -> dict[str, Any] | None:
        """A JSON object, or None when not given."""
        value = self.value(name)
        if value is not None and not isinstance(value, dict):
            raise wrong_type(self.name_of(name), "an object", value)
        return value

    def inner(self, value: Any, path: str) -> Fields:
        """The fields of an object that stands in this one, at `path` of the body. Errors: 400 when it is none."""
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        found = Fields(value, path)
        self._inner.append(found)
        return found

    def object(self, name: str) -> Fields:
        """The fields of an object; of an empty one when it is not given."""
        value = self.value(name)
        return self.inner({} if value is None else value, self.name_of(name))

    def known(self, *names: str) -> None:
        """Fields that are taken without an effect."""
        self._read.update(names)

    def strings(self, name: str, *, most: int) -> tuple[str, ...] | None:
        """A string or a list of at most `most` strings, or None when not given."""
        value = self.value(name)
        return (value,) if isinstance(value, str) else self._list(name, value, most, _to_string)

    def integers(self, name: str, *, most: int) -> tuple[int, ...] | None:
        """A list of at most `most` integers, or None when not given."""
        return self._list(name, self.value(name), most, to_integer)

    def unread(self) -> Iterator[str]:
        """The paths of fields that the body has and nobody asked for; one that is null is not given."""
        for name, value in self._body.items():
            if value is not None and name not in self._read:
                yield self.name_of(name)
        for inner in self._inner:
            yield from inner.unread()

    def _list(self, name: str, value: Any, most: int, convert: Callable[[Any, str], Item]) -> tuple[Item, ...] | None:
        if value is None:
            return None
        path = self.name_of(name)
        if not isinstance(value, list):
            raise wrong_type(path, "a list", value)
        if len(value) > most:
            raise invalid(f"{path} takes at most {most} entries, got {len(value)}", param=path)
        return tuple(convert(item, f"{path}.{index}") for index, item in enumerate(value))


def to_integer(value: Any, path: str, *, low: int = _INT_LOW, high: int = _INT_HIGH) -> int:
    """Errors: 400 unless `value` is a whole number within [low, high]."""
    number = value
    if isinstance(number, float) and math.isfinite(number) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int):
        raise wrong_type(path, "an integer", value)
    if not low <= number <= high:
        raise invalid(f"{path} must be between {low} and {high}, got {shown(value)}", param=path)
    return number


def to_number(value: Any, path: str) -> float:
    """Errors: 400 unless `value` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(path, "a number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise invalid(f"{path} must be a finite number, got {shown(value)}", param=path)
    return number


def wrong_type(path: str, wanted: str, value: Any) -> RequestError:
    """The error of a field that has another type than it should."""
    found = kind_of(value)
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        found = f"{found} ({shown(value)})"
    return invalid(f"{path} must be {wanted}, got {found}", param=path)


def shown(value: Any) -> str:
    """A value for an error text: short and without control characters, whatever the client sent."""
    text = ascii(value[:100] if isinstance(value, str) else value)
    return text if len(text) <= 80 else text[:77] + "..."


def _to_string(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    return value
