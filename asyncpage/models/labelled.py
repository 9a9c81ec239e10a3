"""A tensor without values that knows which tensors of a checkpoint it is made of.

`operators` builds a model of them to learn where each weight goes; whatever a family does to a tensor on its way into
a part (joins, views, casts), the labels follow it.

INVARIANT: what is computed from labelled tensors has the labels of them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor


class Labelled(Tensor):
    """`labels`: names in the checkpoint, in the order in which they were met."""

    labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Sequence[str], tensor: Tensor) -> Labelled:
        """The same tensor, made of those."""
        made = tensor.as_subclass(cls)
        made.labels = tuple(names)
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if isinstance(made, cls):
            made.labels = tuple(dict.fromkeys(_labels(args)))
        return made


def _labels(args: Sequence[Any]) -> Iterator[str]:
    for arg in args:
        if isinstance(arg, Labelled):
            yield from arg.labels
        elif isinstance(arg, list | tuple):
            yield from _labels(arg)
