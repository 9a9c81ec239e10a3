"""A recorded message for people and for comparison: its fields by name, and where two of them differ.

The replay compares with it what bytes say is different; the listing prints from it.

INVARIANT: fields that only one version of a message has are no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from asyncpage.errors import Failure
from asyncpage.pipes.journal.dialect import MESSAGES

Shapes = Mapping[str, tuple[str, ...]]

_CLASSES: Mapping[str, type] = {**MESSAGES, "Failure": Failure}
_MOST_SHOWN = 100  # characters of one value


class Fields(dict[str, Any]):
    """A message's fields by name. A plain map inside a message is a value, which is compared whole."""


def view(name: str, plain: Any, shapes: Shapes) -> Any:
    """The plain fields of a message of class `name` as `Fields`; columns become lists."""
    cls = _CLASSES.get(name)
    return _named(cls, plain, shapes) if cls is not None else _listed(plain)


def _named(annotation: Any, plain: Any, shapes: Shapes) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if is_dataclass(annotation):
        name = getattr(annotation, "__name__", "")
        shape = shapes.get(name, ())
        if not isinstance(plain, tuple | list) or len(plain) != len(shape):
            return _listed(plain)  # the journal holds something else in its place
        hints = get_type_hints(annotation)
        return Fields({at: _named(hints.get(at), item, shapes) for at, item in zip(shape, plain, strict=True)})
    if origin is tuple and isinstance(plain, tuple | list):
        kinds = [arguments[0]] * len(plain) if arguments[-1:] == (Ellipsis,) else arguments
        if len(kinds) == len(plain):
            return [_named(kind, item, shapes) for kind, item in zip(kinds, plain, strict=True)]
    members = [member for member in arguments if member is not NoneType]
    if len(members) == 1 and plain is not None and NoneType in arguments:
        return _named(members[0], plain, shapes)
    return _listed(plain)


def _listed(plain: Any) -> Any:
    """Columns as lists of numbers, the rest as it is."""
    match plain:
        case ["<i4" | "<i8" | "<f4" as dtype, tuple() | list() as shape, bytes() as data]:
            return np.frombuffer(data, dtype).reshape(shape).tolist()
        case tuple() | list():
            return [_listed(item) for item in plain]
    return plain


def differences(recorded: Any, today: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Places in two views where they differ, each with both values."""
    if isinstance(recorded, Fields) and isinstance(today, Fields):
        for key in recorded:
            if key in today:
                yield from differences(recorded[key], today[key], f"{path}.{key}" if path else key)
    elif isinstance(recorded, list) and isinstance(today, list) and len(recorded) == len(today):
        for at, (one, other) in enumerate(zip(recorded, today, strict=True)):
            yield from differences(one, other, f"{path}[{at}]")
    elif recorded != today:
        yield path, recorded, today


def shown(value: Any) -> str:
    """One value in at most a line's length."""
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 20]}... ({len(text)} characters)"
