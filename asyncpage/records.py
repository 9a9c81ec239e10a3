"""`record`: `dataclass` for values that are made by the thousand.

Written and read as `@record(frozen=True, slots=True)`; the type checker takes it for `dataclass` and refuses every
assignment to a field. The interpreter does not: its own guard makes a value of twelve fields cost 1.9 us, not 0.3.

INVARIANT: a record is compared and hashed as the frozen dataclass that it is to its readers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

__all__ = ["record"]

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    T = TypeVar("T", bound=type)

    def record(*, frozen: bool, slots: bool, eq: bool = True) -> Callable[[T], T]:
        """See the module; without `eq` a record equals and hashes as itself alone."""
        assert frozen
        return dataclass(slots=slots, eq=eq, unsafe_hash=eq)
