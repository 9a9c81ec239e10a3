"""Compiles JSON Schema: what a schema allows, as a network of bytes.

`compile` calls it for a schema, `structure` for those that are parts of one. Every set of schemas that hold for one
value is a rule, written once, from a list of those that are waiting: nothing recurses into a schema, however deep.

INVARIANT: every text that matches is JSON that is valid for the schema.
"""

from __future__ import annotations

from typing import Any

from asyncpage.grammar.builder import NetworkBuilder
from asyncpage.grammar.json_text import JsonText
from asyncpage.grammar.refusal import too_large
from asyncpage.grammar.schema_alternatives import Alternatives
from asyncpage.grammar.schema_arrays import write_array
from asyncpage.grammar.schema_check import listed_values
from asyncpage.grammar.schema_numbers import write_number
from asyncpage.grammar.schema_objects import ObjectWriter
from asyncpage.grammar.schema_sets import write_set
from asyncpage.grammar.schema_shape import Shape
from asyncpage.grammar.schema_site import Path, SchemaDocument, Site
from asyncpage.grammar.schema_strings import write_string

MAX_RULES = 10_000  # sets of schemas that hold for one value


class SchemaCompiler:
    """Compiles one document into a builder."""

    def __init__(self, builder: NetworkBuilder, json_text: JsonText, schema: Any, path: Path = ()) -> None:
        """`path`: of the schema in a larger document. Errors: 400 unless `schema` is a schema."""
        self._builder = builder
        self._json = json_text
        self._document = SchemaDocument(schema, path)
        self._root = self._document.root
        self._alternatives = Alternatives(self._document)
        self._rules: dict[tuple[Site, ...], int] = {}
        self._waiting: list[tuple[Site, ...]] = []

    def write(self, source: int, target: int) -> None:
        """The schema's values from `source` to `target`. Errors: 400, `param` the path within the schema."""
        self._value((self._root,), source, target)
        while self._waiting:
            sites = self._waiting.pop()
            rule = self._rules[sites]
            self._write(sites, self._builder.start(rule), self._builder.final(rule))

    def _value(self, sites: tuple[Site, ...], source: int, target: int) -> None:
        """A call of the rule for these sites, which is written when its turn comes."""
        if not sites:
            self._json.any_value(source, target)
            return
        rule = self._rules.get(sites)
        if rule is None:
            if len(self._rules) >= MAX_RULES:
                raise too_large(f"the schema comes to more than {MAX_RULES} different values", sites[0].path)
            rule = self._rules[sites] = self._builder.rule()
            self._waiting.append(sites)
        self._builder.call(source, rule, target)

    def _write(self, sites: tuple[Site, ...], source: int, target: int) -> None:
        constants: list[Any] = []
        for alternative in self._alternatives.of_all(sites):
            shape = Shape(alternative)
            constants += listed_values(shape, self._alternatives)
            if shape.values is None:
                for kind in sorted(shape.types - {"boolean", "null"}):
                    self._write_kind(kind, shape, source, target)
        self._json.constants(constants, source, target)

    def _write_kind(self, kind: str, shape: Shape, source: int, target: int) -> None:
        match kind:
            case "string":
                write_string(self._json, shape, source, target)
            case "number" | "integer":
                write_number(self._json, shape, is_whole=kind == "integer", source=source, target=target)
            case "array" if _says_nothing_of(kind, shape):
                self._json.any_array(source, target)
            case "array" if shape.unique_path is not None and shape.item_counts[1] not in (0, 1):
                write_set(self._builder, self._json, shape, self._alternatives, source, target)
            case "array":
                write_array(self._builder, self._json, shape, self._value, source, target)
            case "object" if _says_nothing_of(kind, shape):
                self._json.any_object(source, target)
            case "object":
                ObjectWriter(self._builder, self._json, shape, self._alternatives, self._value).write(source, target)


def _says_nothing_of(kind: str, shape: Shape) -> bool:
    return all(kind not in one.speaks_of for one in shape.assertions)
