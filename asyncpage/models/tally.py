"""Counts what each part of a model does while it runs: products, weights read, shapes, in the order of the work.

`operators` runs a model of one layer a kind with it. What a part does itself is its own, what its parts do is theirs.

INVARIANT: a number is counted where torch does the work, so no part can be described as doing something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

Shape = tuple[int, ...]

# They read the rows that they give, not the table.
_GATHERS = ("aten::embedding", "aten::index_select", "aten::index")
# Of torch's own attention, which its registry of formulas knows on accelerators alone.
_ATTENTION = "aten::_scaled_dot_product"


@dataclass(slots=True)
class Line:
    """What one key did. `place`: where its own work began among all others', None where it did none.

    `taken`, `given`: shapes of the first call. `read_bytes`: of weights; `kv_read_bytes`, `kv_written_bytes`: of the
    cache. `flops`: two for a multiplication and its addition, in products alone.
    """

    key: str
    path: str
    place: int | None = None
    calls: int = 0
    taken: Shape = ()
    given: Shape = ()
    read_bytes: int = 0
    kv_read_bytes: int = 0
    kv_written_bytes: int = 0
    flops: int = 0


@dataclass(slots=True, eq=False)
class Tally:
    """See `probe.Watch`. `weights`: tensors whose reading counts."""

    lines: dict[str, Line] = field(default_factory=dict)
    _stack: list[Line] = field(default_factory=list)
    _weights: set[int] = field(default_factory=set)
    _works: int = 0

    def enter(self, key: str, path: str) -> None:
        if key.startswith("."):
            key = f"{self._stack[-1].key}{key}" if self._stack else key[1:]
        line = self.lines.setdefault(key, Line(key, path))
        line.calls += 1
        self._stack.append(line)

    def leave(self, args: Sequence[Any], result: Any) -> None:
        line = self._stack.pop()
        line.taken = line.taken or _first_shape(args)
        line.given = line.given or _first_shape((result,))

    def own(self, tensors: Iterable[Tensor]) -> None:
        """Count the reading of these."""
        self._weights.update(tensor.untyped_storage().data_ptr() for tensor in tensors)

    def work(self) -> Line:
        """The line of the part that is at work; it has begun."""
        line = self._stack[-1]
        if line.place is None:
            line.place = self._works
        self._works += 1
        return line

    def counting(self) -> TorchDispatchMode:
        """Within it, what torch does is counted."""
        return _Counting(self)

    def count(self, name: str, flops: int, args: Sequence[Any], result: Any) -> None:
        if not self._stack:
            return
        line = self.work()
        line.flops += flops
        for tensor in _tensors(args):
            if tensor.untyped_storage().data_ptr() in self._weights:
                read = result if name in _GATHERS else tensor
                line.read_bytes += read.numel() * tensor.itemsize


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it without types
    def __init__(self, tally: Tally) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tally = tally

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        result = func(*args, **named)
        name = func._schema.name
        if func.is_view or next(_tensors(args), None) is None or "empty" in name:
            return result
        formula: Callable[..., Any] | None = flop_registry.get(func._overloadpacket)
        if formula is not None:
            flops = int(formula(*args, **named, out_val=result))
        else:
            flops = _attention_flops(*args[:3]) if name.startswith(_ATTENTION) else 0
        self._tally.count(name, flops, args, result)
        return result


def _attention_flops(q: Tensor, k: Tensor, v: Tensor) -> int:
    """Scores and their sum over values, for [..., queries, D], [..., keys, D] and [..., keys, V]."""
    return 2 * prod(q.shape[:-1]) * k.shape[-2] * (q.shape[-1] + v.shape[-1])


def _tensors(args: Sequence[Any]) -> Iterator[Tensor]:
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from _tensors(arg)


def _first_shape(values: Sequence[Any]) -> Shape:
    return next((tuple(tensor.shape) for tensor in _tensors(values)), ())
