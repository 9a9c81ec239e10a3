"""What a schema comes to: alternatives, each a set of assertions that hold at once.

`$ref`, `allOf`, `anyOf` and `oneOf` are resolved here, for one value at a time; what is inside of it stays as sites.

INVARIANT: a value is valid for a schema exactly when all assertions of one alternative hold for it; for `oneOf`, the
alternatives are narrowed until no value is valid for two branches, or the schema is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncpage.grammar.refusal import invalid, too_large
from asyncpage.grammar.schema_assertions import Assertions
from asyncpage.grammar.schema_exclusive import told_apart
from asyncpage.grammar.schema_reader import SchemaReader
from asyncpage.grammar.schema_site import SchemaDocument, Site

MAX_ALTERNATIVES = 1_000  # people's unions have a dozen members
MAX_CHAIN = 100  # schemas that speak of one value through one another; resolving recurses this deep

Alternative = tuple[Assertions, ...]


class Alternatives:
    """Of the sites of one document; each is resolved once."""

    def __init__(self, document: SchemaDocument) -> None:
        self._reader = SchemaReader(document)
        self._known: dict[Site, tuple[Alternative, ...]] = {}
        self._open: dict[Site, None] = {}

    def of_all(self, sites: Iterable[Site]) -> tuple[Alternative, ...]:
        """Of a value for which all these sites must hold. Errors: 400."""
        found: tuple[Alternative, ...] = ((),)
        for site in sites:
            found = _product(found, self.of(site), site)
        return found

    def of(self, site: Site) -> tuple[Alternative, ...]:
        """Errors: 400."""
        known = self._known.get(site)
        if known is None:
            if site in self._open:
                raise invalid("a schema that refers to itself, with nothing around the reference", site.path)
            if len(self._open) >= MAX_CHAIN:
                raise too_large(
                    f"more than {MAX_CHAIN} schemas speak of one value through $ref, allOf, anyOf and oneOf", site.path
                )
            self._open[site] = None
            known = self._known[site] = self._resolved(site)
            del self._open[site]
        return known

    def _resolved(self, site: Site) -> tuple[Alternative, ...]:
        if isinstance(site.schema, bool):
            return ((),) if site.schema else ()
        statement = self._reader.read(site)
        found: tuple[Alternative, ...] = ((statement.assertions,),)
        for also in statement.also:
            found = _product(found, self.of(also), site)
        for choice in statement.choices:
            found = _product(found, tuple(one for option in choice for one in self.of(option)), site)
        if statement.exclusive:
            branches = [_product(found, self.of(branch), site) for branch in statement.exclusive]
            found = told_apart(branches, self, (*site.path, "oneOf"))
        return found


def _product(left: tuple[Alternative, ...], right: tuple[Alternative, ...], site: Site) -> tuple[Alternative, ...]:
    if len(left) * len(right) > MAX_ALTERNATIVES:
        raise too_large(f"a value has more than {MAX_ALTERNATIVES} alternatives", site.path)
    return tuple(tuple(dict.fromkeys((*one, *other))) for one in left for other in right)
