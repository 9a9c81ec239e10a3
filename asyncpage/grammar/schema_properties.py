"""Which properties an object of a shape may have: the declared ones, those only required, and those by pattern.

`schema_objects` writes them in this order.

An answer keeps to what is declared: without `additionalProperties`, an object that declares properties has no others,
which is valid and what people mean. An object without declared properties is any object. Names that are required and
not declared come after those that are; names that a pattern allows, and others, come last.

INVARIANT: no name is in two entries, and for every name of an entry its sites are all that must hold for its value.
"""

from __future__ import annotations

from functools import reduce

from asyncpage.grammar.dfa import both, none_of, words
from asyncpage.grammar.nfa import NOTHING, Nfa
from asyncpage.grammar.regex import search
from asyncpage.grammar.schema_check import Resolver, is_valid
from asyncpage.grammar.schema_shape import Shape
from asyncpage.grammar.schema_site import Site
from asyncpage.grammar.schema_strings import texts_of_all
from asyncpage.records import record


@record(frozen=True, slots=True, eq=False)
class Entry:
    """A property that may be written: a certain name, or any of `names`, where None is any at all."""

    sites: tuple[Site, ...]
    name: str | None = None
    is_required: bool = False
    names: Nfa | None = None


def named_entries(shape: Shape, resolver: Resolver) -> list[Entry]:
    """Of declared and required names. One that cannot be written is left out, or cannot be matched if required."""
    entries = []
    required = frozenset(shape.required)
    for name in dict.fromkeys((*shape.declared, *shape.required)):
        sites = shape.property_sites(name)
        is_allowed = name not in shape.forbidden and is_valid(name, shape.names, resolver)
        if is_allowed and resolver.of_all(sites):
            entries.append(Entry(sites, name, name in required))
        elif name in required:
            entries.append(Entry(sites, None, True, NOTHING))
    return entries


def free_entries(shape: Shape, resolver: Resolver) -> list[Entry]:
    """Of all other names. A name that two patterns match is left out."""
    patterns = {
        pattern: search(pattern, site.path) for one in shape.assertions for pattern, site in one.pattern_properties
    }
    taken = sorted({*shape.declared, *shape.required, *shape.forbidden})
    allowed = [] if (names := texts_of_all(shape.names, resolver)) is None else [names]
    refused = [none_of(words(taken))] if taken else []
    entries = []
    for pattern, matching in patterns.items():
        others = [none_of(other) for name, other in patterns.items() if name != pattern]
        entries.append(
            Entry(_pattern_sites(shape, pattern), names=reduce(both, [*allowed, *refused, *others], matching))
        )
    additional = tuple(dict.fromkeys(one.additional for one in shape.assertions if one.additional is not None))
    is_any_object = not patterns and all(one.properties is None for one in shape.assertions)
    if is_any_object or additional:
        parts = [*allowed, *refused, *map(none_of, patterns.values())]
        entries.append(Entry(additional, names=reduce(both, parts) if parts else None))
    return [entry for entry in entries if resolver.of_all(entry.sites)]


def _pattern_sites(shape: Shape, pattern: str) -> tuple[Site, ...]:
    """What holds for names that match this pattern and no other."""
    found: list[Site] = []
    for one in shape.assertions:
        own = [site for other, site in one.pattern_properties if other == pattern]
        found += own or ([one.additional] if one.additional is not None else [])
    return tuple(dict.fromkeys(found))
