"""Assertions that hold at once, as one: which types are left, within which bounds.

The compilers of strings, numbers, arrays and objects read it; `schema_check` holds single values against it.

INVARIANT: a shape allows what all its assertions allow; only the types of a schema that names none are narrowed, to
those that its keywords speak of, since that is what its author meant.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from functools import cached_property
from typing import Any

from asyncpage.grammar.regex import search
from asyncpage.grammar.schema_assertions import Assertions, Limit
from asyncpage.grammar.schema_reader import tighter_high, tighter_low
from asyncpage.grammar.schema_site import Path, Site
from asyncpage.grammar.schema_value import TYPES, narrowed


class Shape:
    """Of one alternative."""

    def __init__(self, assertions: tuple[Assertions, ...]) -> None:
        self.assertions = assertions
        self._by_name = [dict(one.properties or ()) for one in assertions]

    @cached_property
    def types(self) -> frozenset[str]:
        """Types that are named, or else spoken of."""
        types, spoken_of = TYPES, frozenset[str]()
        for one in self.assertions:
            types = narrowed(types, one.types)
            spoken_of |= one.speaks_of
        is_named = any(one.types is not TYPES for one in self.assertions)
        return types if is_named or not spoken_of else spoken_of

    @cached_property
    def values(self) -> tuple[Any, ...] | None:
        """The values of an `enum` or `const`, those of the first; the others must be checked."""
        return next((tuple(one.values.values()) for one in self.assertions if one.values is not None), None)

    # --- numbers ------------------------------------------------------------------------------------------------------

    @cached_property
    def low(self) -> Limit | None:
        limit: Limit | None = None
        for one in self.assertions:
            limit = tighter_low(limit, one.low)
        return limit

    @cached_property
    def high(self) -> Limit | None:
        limit: Limit | None = None
        for one in self.assertions:
            limit = tighter_high(limit, one.high)
        return limit

    @cached_property
    def multiples(self) -> frozenset[Decimal]:
        return frozenset(step for one in self.assertions for step in one.multiples)

    # --- strings ------------------------------------------------------------------------------------------------------

    @cached_property
    def length(self) -> tuple[int, int | None]:
        return (
            max((one.min_length for one in self.assertions), default=0),
            _least(one.max_length for one in self.assertions),
        )

    @cached_property
    def patterns(self) -> dict[str, Path]:
        """Where each was found."""
        return {pattern: path for one in self.assertions for pattern, path in one.patterns}

    @cached_property
    def formats(self) -> frozenset[str]:
        return frozenset(name for one in self.assertions for name in one.formats)

    # --- arrays -------------------------------------------------------------------------------------------------------

    @cached_property
    def item_counts(self) -> tuple[int, int | None]:
        return (
            max((one.min_items for one in self.assertions), default=0),
            _least(one.max_items for one in self.assertions),
        )

    @cached_property
    def unique_path(self) -> Path | None:
        """The path of a `uniqueItems` that is true, None when items may be equal."""
        return next(((*one.path, "uniqueItems") for one in self.assertions if one.is_unique), None)

    @cached_property
    def prefix(self) -> int:
        """Items that may each have a schema of their own; all behind them have the same."""
        return max((len(one.prefix) for one in self.assertions), default=0)

    def item_sites(self, index: int) -> tuple[Site, ...]:
        """What must hold for the item at `index`."""
        found = (one.prefix[index] if index < len(one.prefix) else one.items for one in self.assertions)
        return tuple(dict.fromkeys(site for site in found if site is not None))

    # --- objects ------------------------------------------------------------------------------------------------------

    @cached_property
    def property_counts(self) -> tuple[int, int | None]:
        return (
            max((one.min_properties for one in self.assertions), default=0),
            _least(one.max_properties for one in self.assertions),
        )

    @cached_property
    def required(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for one in self.assertions for name in one.required))

    @cached_property
    def forbidden(self) -> frozenset[str]:
        return frozenset(name for one in self.assertions for name in one.forbidden)

    @cached_property
    def declared(self) -> tuple[str, ...]:
        """Names under `properties`, in their order."""
        return tuple(dict.fromkeys(name for one in self.assertions for name, _ in one.properties or ()))

    def property_sites(self, name: str) -> tuple[Site, ...]:
        """What must hold for the value under `name`."""
        found: list[Site] = []
        for one, by_name in zip(self.assertions, self._by_name, strict=True):
            own = [by_name[name]] if name in by_name else []
            own += [site for pattern, site in one.pattern_properties if search(pattern, site.path).matches(name)]
            if not own and one.additional is not None:
                own = [one.additional]
            found += own
        return tuple(dict.fromkeys(found))

    @cached_property
    def names(self) -> tuple[Site, ...]:
        """What must hold for every property's name."""
        return tuple(dict.fromkeys(one.names for one in self.assertions if one.names is not None))


def _least(counts: Iterable[int | None]) -> int | None:
    return min((count for count in counts if count is not None), default=None)
