"""Reads schema objects: JSON Schema 2020-12's keywords, and the older spellings that people still send.

`schema_alternatives` asks it for every site that it meets.

INVARIANT: a keyword is enforced, an annotation, or refused by name; what is no keyword of JSON Schema is refused too,
since a misspelled condition would else be dropped without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from asyncpage.grammar.formats import INTEGER_FORMATS, NUMBER_FORMATS, PLAIN_FORMATS, STRING_FORMATS
from asyncpage.grammar.refusal import invalid, too_large, unsupported
from asyncpage.grammar.schema_assertions import Assertions, Limit, Statement
from asyncpage.grammar.schema_site import Path, SchemaDocument, Site
from asyncpage.grammar.schema_value import TYPES, key_of

MAX_ENTRIES = 10_000  # of a list or an object of a schema

# They say nothing of which values are valid. The last line's are OpenAPI's and others' that widen or explain.
ANNOTATIONS = frozenset(
    {
        "title", "description", "default", "examples", "$comment", "$schema", "deprecated", "readOnly", "writeOnly",
        "$defs", "definitions", "$vocabulary", "$anchor",
        "example", "nullable", "discriminator", "externalDocs", "xml", "propertyOrdering", "enumNames",
        "markdownDescription",
    }
)  # fmt: skip

# Keywords of JSON Schema that say something which is not enforced here.
REFUSED = frozenset(
    {
        "not", "if", "then", "else", "dependentSchemas", "dependentRequired", "dependencies", "unevaluatedProperties",
        "unevaluatedItems", "contains", "minContains", "maxContains", "contentEncoding", "contentMediaType",
        "contentSchema", "$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor",
    }
)  # fmt: skip


class SchemaReader:
    """Reads the sites of one document."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document

    def read(self, site: Site) -> Statement:
        """Errors: 400 with the keyword's path."""
        assert isinstance(site.schema, dict)
        fields: dict[str, Any] = {}
        kinds: set[str] = set()
        also: list[Site] = []
        choices: list[tuple[Site, ...]] = []
        exclusive: tuple[Site, ...] = ()
        for keyword, value in site.schema.items():
            path = (*site.path, keyword)
            if keyword in _FIELDS:
                field, kind, read = _FIELDS[keyword]
                fields[field] = read(self, value, path)
                kinds |= kind
            elif keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
                _narrow(fields, keyword, _number(value, path))
                kinds.add("number")
            elif keyword == "enum":
                _keep(fields, _list(value, path))
            elif keyword == "const":
                _keep(fields, [value])
            elif keyword == "format":
                kinds |= _format(fields, value, path)
            elif keyword == "$ref":
                also.append(self._document.resolve(value, path))
            elif keyword == "allOf":
                also += self._sites(value, path)
            elif keyword == "anyOf":
                choices.append(self._sites(value, path))
            elif keyword == "oneOf":
                exclusive = self._sites(value, path)
            else:
                self._other(site, keyword, value, path)
        if isinstance(site.schema.get("items"), list):
            self._tuple_form(site, fields)
        assertions = Assertions(site.path, speaks_of=frozenset(kinds), **fields)
        return Statement(assertions, tuple(also), tuple(choices), exclusive)

    def _other(self, site: Site, keyword: str, value: Any, path: Path) -> None:
        """What is allowed to say nothing."""
        if keyword in ANNOTATIONS or keyword.startswith("x-"):
            return
        if keyword == "$id" and site is self._document.root:
            return
        if keyword == "additionalItems" and not isinstance(site.schema, bool):
            if isinstance(site.schema.get("items"), list):
                return  # read with `items`
            if "items" in site.schema or value is True:
                return  # says nothing beside a schema for all items
        if keyword in REFUSED or keyword in ("$id", "additionalItems"):
            raise unsupported(f"the keyword {keyword} is not supported: leave it out, or say it another way", path)
        raise unsupported(
            "a keyword that JSON Schema does not have: correct its spelling, or begin it with x- if it is a note", path
        )

    def _tuple_form(self, site: Site, fields: dict[str, Any]) -> None:
        """`items` as a list, and `additionalItems`, as drafts before 2020-12 had them."""
        assert isinstance(site.schema, dict)
        if "prefix" in fields:
            raise invalid("items must be a schema beside prefixItems", (*site.path, "items"))
        fields["prefix"] = self._sites(site.schema["items"], (*site.path, "items"), may_be_empty=True)
        fields["items"] = None
        if "additionalItems" in site.schema:
            path = (*site.path, "additionalItems")
            fields["items"] = self._document.site(path, site.schema["additionalItems"])

    # --- values of keywords -------------------------------------------------------------------------------------------

    def _schema(self, value: Any, path: Path) -> Site:
        return self._document.site(path, value)

    def _items(self, value: Any, path: Path) -> Site | None:
        return None if isinstance(value, list) else self._document.site(path, value)

    def _sites(self, value: Any, path: Path, *, may_be_empty: bool = False) -> tuple[Site, ...]:
        schemas = _list(value, path, may_be_empty=may_be_empty)
        return tuple(self._document.site((*path, str(index)), schema) for index, schema in enumerate(schemas))

    def _named(self, value: Any, path: Path) -> tuple[tuple[str, Site], ...]:
        if not isinstance(value, dict):
            raise invalid(f"{path[-1]} must be an object", path)
        if len(value) > MAX_ENTRIES:
            raise too_large(f"{path[-1]} may have at most {MAX_ENTRIES} entries, got {len(value)}", path)
        return tuple((name, self._document.site((*path, name), schema)) for name, schema in value.items())

    def _count(self, value: Any, path: Path) -> int:
        number = _number(value, path)
        if number < 0 or number != number.to_integral_value():
            raise invalid(f"{path[-1]} must be a whole number of at least 0", path)
        return int(number)

    def _flag(self, value: Any, path: Path) -> bool:
        if not isinstance(value, bool):
            raise invalid(f"{path[-1]} must be true or false", path)
        return value

    def _types(self, value: Any, path: Path) -> frozenset[str]:
        names = [value] if isinstance(value, str) else _list(value, path)
        for name in names:
            if not isinstance(name, str) or name not in TYPES | {"integer"}:
                raise invalid(f"type must be one or several of {', '.join(sorted(TYPES | {'integer'}))}", path)
        types = frozenset(names)
        return types - {"integer"} if "number" in types else types

    def _multiples(self, value: Any, path: Path) -> tuple[Decimal, ...]:
        number = _number(value, path)
        if number <= 0:
            raise invalid("multipleOf must be above 0", path)
        if Decimal(float(number)) != number:
            raise unsupported(
                "multipleOf is supported for whole numbers and binary fractions, such as 0.5 or 0.25: whether a double "
                "is a multiple of others cannot be told exactly",
                path,
            )
        return (number,)

    def _patterns(self, value: Any, path: Path) -> tuple[tuple[str, Path], ...]:
        if not isinstance(value, str):
            raise invalid("pattern must be a string", path)
        return ((value, path),)

    def _strings(self, value: Any, path: Path) -> tuple[str, ...]:
        names = _list(value, path, may_be_empty=True)
        for name in names:
            if not isinstance(name, str):
                raise invalid(f"{path[-1]} must be a list of strings", path)
        return tuple(dict.fromkeys(names))


def _narrow(fields: dict[str, Any], keyword: str, number: Decimal) -> None:
    is_outside = keyword.startswith("exclusive")
    field, take = ("low", tighter_low) if keyword.endswith("inimum") else ("high", tighter_high)
    if is_outside:
        number = Decimal(repr(float(number))) if abs(number) < _EXACT or number != int(number) else number
    fields[field] = take(fields.get(field), (number, is_outside))


_EXACT = 2**53  # whole numbers above are compared as they are written


def tighter_low(left: Limit | None, right: Limit | None) -> Limit | None:
    """The lower limit that leaves less."""
    return max((limit for limit in (left, right) if limit is not None), default=None)


def tighter_high(left: Limit | None, right: Limit | None) -> Limit | None:
    """The upper limit that leaves less."""
    limits = [limit for limit in (left, right) if limit is not None]
    return min(limits, key=lambda limit: (limit[0], not limit[1]), default=None)


def _keep(fields: dict[str, Any], values: list[Any]) -> None:
    by_key = {key_of(value): value for value in reversed(values)}
    if "values" in fields:
        by_key = {key: value for key, value in by_key.items() if key in fields["values"]}
    fields["values"] = by_key


def _format(fields: dict[str, Any], value: Any, path: Path) -> set[str]:
    """Formats are conditions here, not notes."""
    if not isinstance(value, str):
        raise invalid("format must be a string", path)
    if value in INTEGER_FORMATS:
        low, high = INTEGER_FORMATS[value]
        fields["low"] = tighter_low(fields.get("low"), (Decimal(low), False))
        fields["high"] = tighter_high(fields.get("high"), (Decimal(high), False))
        return {"number"}
    if value in NUMBER_FORMATS:
        return {"number"}
    if value in PLAIN_FORMATS:
        return {"string"}
    if value not in STRING_FORMATS:
        raise unsupported(f"this format is not supported; supported are {', '.join(sorted(STRING_FORMATS))}", path)
    fields["formats"] = (value,)
    return {"string"}


def _number(value: Any, path: Path) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise invalid(f"{path[-1]} must be a number", path)
    return Decimal(value)


def _list(value: Any, path: Path, *, may_be_empty: bool = False) -> list[Any]:
    if not isinstance(value, list) or not (value or may_be_empty):
        raise invalid(f"{path[-1]} must be a list{'' if may_be_empty else ' of at least one entry'}", path)
    if len(value) > MAX_ENTRIES:
        raise too_large(f"{path[-1]} may have at most {MAX_ENTRIES} entries, got {len(value)}", path)
    return value


# keyword: field, the types that it is about, how its value is read
_FIELDS: dict[str, tuple[str, frozenset[str], Callable[[SchemaReader, Any, Path], Any]]] = {
    "type": ("types", frozenset(), SchemaReader._types),
    "multipleOf": ("multiples", frozenset({"number"}), SchemaReader._multiples),
    "minLength": ("min_length", frozenset({"string"}), SchemaReader._count),
    "maxLength": ("max_length", frozenset({"string"}), SchemaReader._count),
    "pattern": ("patterns", frozenset({"string"}), SchemaReader._patterns),
    "prefixItems": ("prefix", frozenset({"array"}), SchemaReader._sites),
    "items": ("items", frozenset({"array"}), SchemaReader._items),
    "minItems": ("min_items", frozenset({"array"}), SchemaReader._count),
    "maxItems": ("max_items", frozenset({"array"}), SchemaReader._count),
    "uniqueItems": ("is_unique", frozenset({"array"}), SchemaReader._flag),
    "properties": ("properties", frozenset({"object"}), SchemaReader._named),
    "patternProperties": ("pattern_properties", frozenset({"object"}), SchemaReader._named),
    "additionalProperties": ("additional", frozenset({"object"}), SchemaReader._schema),
    "propertyNames": ("names", frozenset({"object"}), SchemaReader._schema),
    "required": ("required", frozenset({"object"}), SchemaReader._strings),
    "minProperties": ("min_properties", frozenset({"object"}), SchemaReader._count),
    "maxProperties": ("max_properties", frozenset({"object"}), SchemaReader._count),
}
