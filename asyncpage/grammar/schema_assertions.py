"""What one schema object says by itself: its keywords, each checked and read into a value.

`schema_reader` makes them, `schema_alternatives` puts those together that hold at once.

INVARIANT: every keyword of the schema is in here, or was an annotation, or has been refused by name.
"""

from __future__ import annotations

from collections.abc import Hashable
from decimal import Decimal
from typing import Any

from asyncpage.grammar.schema_site import Path, Site
from asyncpage.grammar.schema_value import TYPES
from asyncpage.records import record

Limit = tuple[Decimal, bool]
"""A number, and whether it is itself outside."""

Named = tuple[tuple[str, Site], ...]
"""Schemas by property name, or by pattern, in their order."""


@record(frozen=True, slots=True, eq=False)
class Assertions:
    """Absent keywords have the value that allows everything; None for `properties` is not the same as none.

    `values`: of `enum` and `const`, by their keys. `speaks_of`: the types that its keywords are about. `forbidden`:
    names that an object must not have, which no keyword says, but the telling apart of `oneOf` does.
    """

    path: Path
    types: frozenset[str] = TYPES
    speaks_of: frozenset[str] = frozenset()
    values: dict[Hashable, Any] | None = None
    low: Limit | None = None
    high: Limit | None = None
    multiples: tuple[Decimal, ...] = ()
    min_length: int = 0
    max_length: int | None = None
    patterns: tuple[tuple[str, Path], ...] = ()
    formats: tuple[str, ...] = ()
    prefix: tuple[Site, ...] = ()
    items: Site | None = None
    min_items: int = 0
    max_items: int | None = None
    is_unique: bool = False
    properties: Named | None = None
    pattern_properties: Named = ()
    additional: Site | None = None
    names: Site | None = None
    required: tuple[str, ...] = ()
    forbidden: frozenset[str] = frozenset()
    min_properties: int = 0
    max_properties: int | None = None


@record(frozen=True, slots=True, eq=False)
class Statement:
    """A schema object in full: what it says by itself, and the schemas that speak of the same value.

    `also`: those that must hold as well. `choices`: of each of these groups, one must. `exclusive`: of these, exactly
    one.
    """

    assertions: Assertions
    also: tuple[Site, ...]
    choices: tuple[tuple[Site, ...], ...]
    exclusive: tuple[Site, ...]
