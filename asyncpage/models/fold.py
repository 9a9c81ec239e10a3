"""Which layers of a model are alike, so that a list of its operators names them once.

`operators` asks it before it runs one layer of each kind.

INVARIANT: two layers are alike when they are made of the same parts, with equal numbers in them but for their index,
and of tensors of equal shapes and types that are stored alike.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

from asyncpage.models.labelled import Labelled
from asyncpage.models.probe import LAYERS, fields_of, is_part

StoredAs = Callable[[str], str]
"""stored_as(name) -> the type that the checkpoint's tensor of this name is stored in."""

_INDEX = "layer"  # the field in which a part says which layer it is of


def fold_layers(model: Any, stored_as: StoredAs) -> tuple[tuple[int, ...], ...]:
    """The numbers of the layers that are alike, each kind where its first one stands; () for a model without layers."""
    fields = {name.lstrip("_"): value for name, value in fields_of(model).items()}
    kinds: dict[Hashable, list[int]] = {}
    for number, layer in enumerate(fields.get(LAYERS, ())):
        kinds.setdefault(_signature(layer, stored_as), []).append(number)
    return tuple(map(tuple, kinds.values()))


def _signature(value: Any, stored_as: StoredAs) -> Hashable:
    if isinstance(value, Tensor):
        labels = value.labels if isinstance(value, Labelled) else ()
        return tuple(value.shape), str(value.dtype), tuple(map(stored_as, labels))
    if isinstance(value, list | tuple):
        return tuple(_signature(one, stored_as) for one in value)
    if is_part(value):
        fields = fields_of(value).items()
        return type(value), tuple((name, _signature(field, stored_as)) for name, field in fields if name != _INDEX)
    return value if isinstance(value, Hashable) else id(value)
