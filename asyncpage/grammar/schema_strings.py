"""String shapes: patterns, formats and lengths together, as one automaton over the decoded text.

The compiler writes what it gives; objects use it for the names of their properties.

INVARIANT: the automaton matches exactly the texts for which every pattern, format and length of the shape holds.
"""

from __future__ import annotations

from functools import reduce

from asyncpage.grammar.dfa import between, both, either, words
from asyncpage.grammar.formats import format_texts
from asyncpage.grammar.json_text import JsonText
from asyncpage.grammar.nfa import ANYTHING, Nfa
from asyncpage.grammar.regex import search
from asyncpage.grammar.schema_check import Resolver, passes
from asyncpage.grammar.schema_shape import Shape
from asyncpage.grammar.schema_site import Site


def texts_of(shape: Shape) -> Nfa | None:
    """The texts of a shape; None when only its length is bounded. Errors: 400."""
    automata = [format_texts(name) for name in sorted(shape.formats)]
    automata += [search(pattern, path) for pattern, path in sorted(shape.patterns.items())]
    return between(reduce(both, automata), *shape.length) if automata else None


def texts_of_all(sites: tuple[Site, ...], resolver: Resolver) -> Nfa | None:
    """The texts for which all these sites hold; None when all do. Errors: 400."""
    if not sites:
        return None
    parts = []
    for alternative in resolver.of_all(sites):
        shape = Shape(alternative)
        if shape.values is not None:
            texts = [value for value in shape.values if isinstance(value, str) and passes(value, shape, resolver)]
            parts.append(words(texts))
        elif "string" in shape.types:
            texts_of_shape = texts_of(shape)
            parts.append(between(ANYTHING, *shape.length) if texts_of_shape is None else texts_of_shape)
    return either(parts)


def write_string(json: JsonText, shape: Shape, source: int, target: int) -> None:
    """The strings of a shape from `source` to `target`. Equal shapes share a rule."""
    low, high = shape.length
    texts = texts_of(shape)
    key = ("string", low, high, *sorted(shape.formats), None, *sorted(shape.patterns))
    if texts is not None:
        json.shared(key, lambda start, final: json.string(texts, start, final), source, target)
    elif (low, high) == (0, None):
        json.any_string(source, target)
    elif high is None or low <= high:
        json.shared(key, lambda start, final: json.string_of_length(low, high, start, final), source, target)
