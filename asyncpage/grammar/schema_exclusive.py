"""Tells the branches of a `oneOf` apart, so that a value is valid for one of them only.

`schema_alternatives` calls it. Branches are apart by their types, by the values that they list, by bounds, by strings
that no two match, and, for objects, by a property: one that both declare with different values, or that one requires
and the other does not know. What a branch leaves open is then closed: such a property becomes required there, or
forbidden. That leaves out valid answers, and lets no invalid one in.

INVARIANT: no value of one branch, as narrowed, is valid for another; where that cannot be shown, the schema is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpage.grammar.dfa import both
from asyncpage.grammar.refusal import too_large, unsupported
from asyncpage.grammar.schema_assertions import Assertions
from asyncpage.grammar.schema_check import Resolver, passes
from asyncpage.grammar.schema_shape import Shape
from asyncpage.grammar.schema_site import Path, Site
from asyncpage.grammar.schema_strings import texts_of
from asyncpage.grammar.schema_value import TYPES, narrowed

MAX_PAIRS = 5_000  # a hundred branches with each other

Alternative = tuple[Assertions, ...]


class _Branch:
    """One alternative of a branch, and what it must have and not have to be apart from the others."""

    def __init__(self, alternative: Alternative) -> None:
        self.alternative = alternative
        self.shape = Shape(alternative)
        self.required: dict[str, None] = {}
        self.forbidden: set[str] = set()

    @property
    def types(self) -> frozenset[str]:
        """Of every valid value, so without what keywords only speak of."""
        types = TYPES
        for one in self.alternative:
            types = narrowed(types, one.types)
        return types

    def narrowed(self, path: Path) -> Alternative:
        if not self.required and not self.forbidden:
            return self.alternative
        closing = Assertions(path, required=tuple(self.required), forbidden=frozenset(self.forbidden))
        return (*self.alternative, closing)


def told_apart(branches: Sequence[tuple[Alternative, ...]], resolver: Resolver, path: Path) -> tuple[Alternative, ...]:
    """All branches' alternatives, narrowed. Errors: 400 "unsupported" when two may both be valid."""
    made = [[_Branch(one) for one in branch] for branch in branches]
    pairs = [
        (one, other) for index, left in enumerate(made) for right in made[:index] for one in left for other in right
    ]
    if len(pairs) > MAX_PAIRS:
        raise too_large(f"oneOf has more than {MAX_PAIRS} pairs of branches", path)
    for one, other in pairs:
        if not _are_apart(one, other, resolver):
            raise unsupported(
                "oneOf is supported for branches that exclude each other, by type, by listed values, or by a property "
                "that is required and has a const in each: write anyOf, or tell them apart",
                path,
            )
    return tuple(one.narrowed(path) for branch in made for one in branch)


def _are_apart(one: _Branch, other: _Branch, resolver: Resolver) -> bool:
    for left, right in ((one, other), (other, one)):
        if left.shape.values is not None:
            return not any(
                passes(value, left.shape, resolver) and passes(value, right.shape, resolver)
                for value in left.shape.values
            )
    types = narrowed(one.types, other.types)
    return all(_are_apart_as(kind, one, other, resolver) for kind in types)


def _are_apart_as(kind: str, one: _Branch, other: _Branch, resolver: Resolver) -> bool:
    """Whether no value of this type is valid for both."""
    left, right = one.shape, other.shape
    match kind:
        case "number" | "integer":
            return _numbers_end_before(left, right) or _numbers_end_before(right, left)
        case "string":
            return _counts_miss(left.length, right.length) or _strings_miss(left, right)
        case "array":
            return _counts_miss(left.item_counts, right.item_counts)
        case "object":
            return _counts_miss(left.property_counts, right.property_counts) or _objects_miss(one, other, resolver)
    return False


def _numbers_end_before(left: Shape, right: Shape) -> bool:
    if left.high is None or right.low is None:
        return False
    (high, is_high_out), (low, is_low_out) = left.high, right.low
    return high < low or (high == low and (is_high_out or is_low_out))


def _counts_miss(left: tuple[int, int | None], right: tuple[int, int | None]) -> bool:
    return any(high is not None and high < low for (_, high), (low, _) in ((left, right), (right, left)))


def _strings_miss(left: Shape, right: Shape) -> bool:
    left_texts, right_texts = texts_of(left), texts_of(right)
    return left_texts is not None and right_texts is not None and both(left_texts, right_texts).is_empty


def _objects_miss(one: _Branch, other: _Branch, resolver: Resolver) -> bool:
    left, right = one.shape, other.shape
    for name in left.declared:
        if name in right.declared and _values_miss(left.property_sites(name), right.property_sites(name), resolver):
            one.required[name] = None
            other.required[name] = None
            return True
    for mine, others in ((left, right), (right, left)):
        if any(not resolver.of_all(others.property_sites(name)) for name in mine.required):
            return True  # the other forbids what this one requires
    own = [name for name in left.required if name not in right.declared]
    others_own = [name for name in right.required if name not in left.declared]
    if own and others_own:
        one.forbidden.add(others_own[0])
        other.forbidden.add(own[0])
        return True
    return False


def _values_miss(left: tuple[Site, ...], right: tuple[Site, ...], resolver: Resolver) -> bool:
    """Whether no value is valid for both, told by listed values and types alone."""
    ones = [_Branch(one) for one in resolver.of_all(left)]
    others = [_Branch(other) for other in resolver.of_all(right)]
    for one in ones:
        for other in others:
            has_values = one.shape.values is not None or other.shape.values is not None
            if has_values and not _are_apart(one, other, resolver):
                return False
            if not has_values and narrowed(one.types, other.types):
                return False
    return True
