"""Puts probes around the parts of a model that is built, so that a watch learns when each part works.

`operators` lists a model by them and the executor's `step_clock` times one. Nobody else does: a model that serves has
no probes, and its parts know nothing of them.

A part is what has an identity: an object, or a dataclass that is not compared by value. What a part is made of is found
in its fields, so a part of somebody's own needs no word of this; functions are no parts, their work is their caller's.

INVARIANT: a model with probes computes what it does without them, and the original is left as it was.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from torch import Tensor

LAYERS = "layers"
"""The field of a model, with or without an underscore, that holds its layers."""


@dataclasses.dataclass(frozen=True, slots=True)
class HeldAs:
    """What a part may say of itself as its `held`: the `kind` in which it has its weights, their `size` in bytes."""

    kind: str
    size: int


class Watch(Protocol):
    """Told of the parts as they work; calls nest. `path`: where a part is in the model, as in `layers.3.attention`.

    `key`: the path, and a method's name where a part is not simply called. One that begins with a dot has no place of
    its own and works for whoever called it.
    """

    def enter(self, key: str, path: str) -> None: ...

    def leave(self, args: Sequence[Any], result: Any) -> None: ...


class Probe:
    """In the place of a part."""

    __slots__ = ("_part", "_path", "_watch")

    def __init__(self, path: str, part: Any, watch: Watch) -> None:
        self._path, self._part, self._watch = path, part, watch

    def __call__(self, *args: Any) -> Any:
        return self._run(self._path, self._part, *args)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        return partial(self._run, f"{self._path}.{name}", found) if inspect.ismethod(found) else found

    def _run(self, key: str, work: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self._watch.enter(key, self._path)
        result = work(*args, **named)
        self._watch.leave((*args, *named.values()), result)
        return result


class Prober:
    """Probes a whole model. `tensors`: those that each part holds itself, by the part's path.

    Parts that are alike by number, as experts are, have one path: `experts.*`. `layers`: which of the model's layers to
    keep, None for all. `counts`: how many parts have a path; `classes`: what they are. `held`: how they say that they
    hold their weights, of those whose tensors do not show it.
    """

    def __init__(self, watch: Watch, layers: Iterable[int] | None = None) -> None:
        self._watch = watch
        self._layers = None if layers is None else tuple(layers)
        self.tensors: dict[str, list[Tensor]] = {}
        self.counts: Counter[str] = Counter()
        self.classes: dict[str, str] = {}
        self.held: dict[str, list[HeldAs]] = {}

    def probe(self, part: Any, path: str = "") -> Probe:
        """The same part, made of probed ones."""
        self.counts[path] += 1
        self.classes[path] = type(part).__name__
        if isinstance(held := getattr(part, "held", None), HeldAs):
            self.held.setdefault(path, []).append(held)
        inside = {name: self._field(path, name.lstrip("_"), value) for name, value in fields_of(part).items()}
        changed = {name: value for name, value in inside.items() if value is not fields_of(part)[name]}
        if changed and dataclasses.is_dataclass(part) and not isinstance(part, type):
            part = dataclasses.replace(part, **changed)
        elif changed:
            part = copy.copy(part)
            vars(part).update(changed)
        return Probe(path, part, self._watch)

    def _field(self, path: str, name: str, value: Any) -> Any:
        below = f"{path}.{name}" if path else name
        if isinstance(value, Tensor):
            plain = value.as_subclass(Tensor)
            self.tensors.setdefault(path, []).append(value)
            return plain
        if isinstance(value, list | tuple) and any(map(is_part, value)):
            if below == LAYERS:
                kept = range(len(value)) if self._layers is None else self._layers
                return [self.probe(value[number], f"{below}.{number}") for number in kept]
            star = "*" if len(value) > 1 else "0"
            return [self.probe(one, f"{below}.{star}") if is_part(one) else one for one in value]
        return self.probe(value, below) if is_part(value) else value


def fields_of(part: Any) -> Mapping[str, Any]:
    """What a part is made of."""
    if dataclasses.is_dataclass(part):
        return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    return vars(part) if hasattr(part, "__dict__") else {}


def is_part(value: Any) -> bool:
    """Whether it is one, and not a value, a function or something of a library."""
    kind = type(value)
    is_ours = not kind.__module__.startswith(("torch", "numpy", "builtins", "functools"))
    return (
        is_ours
        and getattr(kind, "__eq__", None) is object.__eq__
        and not inspect.isroutine(value)
        and not isinstance(value, type)
    )
