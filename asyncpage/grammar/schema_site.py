"""Where a schema stands in its document: the unit that is compiled once, and that `$ref` leads to.

The readers of keywords make sites of subschemas; the compiler keeps one rule for every set of sites.

INVARIANT: one place in one document is one `Site`, so a recursive schema has as many sites as its text has schemas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from asyncpage.grammar.refusal import invalid, unsupported
from asyncpage.records import record

Path = tuple[str, ...]


@record(frozen=True, slots=True, eq=False)
class Site:
    """A schema, an object or a boolean, and its `path` from the document's root."""

    path: Path
    schema: dict[str, Any] | bool


WriteValue = Callable[[tuple[Site, ...], int, int], None]
"""Writes the values for which all these sites hold from one state to another."""


class SchemaDocument:
    """The sites of one document, made when they are first asked for. `path`: of the document in a larger one."""

    def __init__(self, root: Any, path: Path) -> None:
        self._root = root
        self._path = path
        self._sites: dict[Path, Site] = {}

    @property
    def root(self) -> Site:
        """Errors: 400 unless the document is a schema."""
        return self.site(self._path, self._root)

    def site(self, path: Path, schema: Any) -> Site:
        """The site of what stands at `path`. Errors: 400 unless it is a schema."""
        known = self._sites.get(path)
        if known is None:
            if not isinstance(schema, (dict, bool)):
                raise invalid("a schema must be an object or a boolean", path)
            known = self._sites[path] = Site(path, schema)
        return known

    def resolve(self, reference: Any, path: Path) -> Site:
        """The site that a `$ref` at `path` leads to: a JSON pointer within the document (RFC 6901).

        Errors: 400 "unsupported" for what is outside, which is never fetched; "invalid_grammar" when nothing is there.
        """
        if not isinstance(reference, str):
            raise invalid("$ref must be a string", path)
        if reference != "#" and not reference.startswith("#/"):
            raise unsupported("a $ref must be # or begin with #/: other documents and anchors are not looked up", path)
        found = self._root
        way = list(self._path)
        for escaped in reference.split("/")[1:]:
            name = unquote(escaped).replace("~1", "/").replace("~0", "~")
            way.append(name)
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isascii() and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            else:
                raise invalid("this $ref leads to nothing in the schema", path)
        return self.site(tuple(way), found)
