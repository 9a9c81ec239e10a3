"""Object shapes: properties in their order, with commas between them, and as many as there must be.

The compiler writes with it; `schema_properties` says which they are.

INVARIANT: every object that matches is valid, its declared properties are in order and at most once, and no other
property has the name of a declared one.
"""

from __future__ import annotations

import json

from asyncpage.grammar.builder import NetworkBuilder
from asyncpage.grammar.json_text import JsonText
from asyncpage.grammar.refusal import unsupported
from asyncpage.grammar.schema_check import Resolver
from asyncpage.grammar.schema_properties import Entry, free_entries, named_entries
from asyncpage.grammar.schema_shape import Shape
from asyncpage.grammar.schema_site import WriteValue

Place = tuple[int, int]
"""The next entry that may come, and how many properties there are, as far as that matters."""


class ObjectWriter:
    """Writes one object shape. Errors: 400 of what it refers to."""

    def __init__(
        self, builder: NetworkBuilder, json_text: JsonText, shape: Shape, resolver: Resolver, write_value: WriteValue
    ) -> None:
        self._builder = builder
        self._json = json_text
        self._write_value = write_value
        self._named = named_entries(shape, resolver)
        self._free = free_entries(shape, resolver)
        self._end = max((index + 1 for index, entry in enumerate(self._named) if entry.is_required), default=0)
        self._least, self._most = self._counts(shape)
        self._closing = builder.state()
        self._begun: dict[Place, int] = {}
        self._ended: dict[Place, int] = {}
        self._waiting: list[Place] = []

    def write(self, source: int, target: int) -> None:
        """The objects of the shape from `source` to `target`."""
        first = self._builder.state()
        self._json.open(source, b"{", first)
        self._builder.jump(first, self._property_begins((0, 0)))
        if self._may_end((0, 0)):
            self._builder.literal(first, b"}", target)
        self._json.close(self._closing, b"}", target)
        while self._waiting:
            self._write_place(self._waiting.pop())

    def _write_place(self, place: Place) -> None:
        """The properties that may come at a place, and the way past one that may be left out."""
        here = self._begun[place]
        index, count = place
        more = self._counted(count)
        if not self._may_go_on(place):
            return
        if index == len(self._named):
            for entry in self._free:
                self._property(entry, here, self._property_ended((index, more)))
            return
        entry = self._named[index]
        self._property(entry, here, self._property_ended((index + 1, more)))
        if not entry.is_required:
            self._builder.jump(here, self._property_begins((index + 1, count)))

    def _property_begins(self, place: Place) -> int:
        state = self._begun.get(place)
        if state is None:
            state = self._begun[place] = self._builder.state()
            self._waiting.append(place)
        return state

    def _property_ended(self, place: Place) -> int:
        state = self._ended.get(place)
        if state is None:
            state = self._ended[place] = self._builder.state()
            if self._may_end(place):
                self._builder.jump(state, self._closing)
            if self._may_go_on(place):
                self._json.open(state, b",", self._property_begins(place))
        return state

    def _property(self, entry: Entry, source: int, target: int) -> None:
        named, value = self._builder.state(), self._builder.state()
        if entry.name is not None:
            self._builder.literal(source, json.dumps(entry.name, ensure_ascii=False).encode(), named)
        elif entry.names is not None:
            self._json.string(entry.names, source, named)
        else:
            self._json.any_string(source, named)
        self._json.colon(named, value)
        self._write_value(entry.sites, value, target)

    # --- counts -------------------------------------------------------------------------------------------------------

    def _counts(self, shape: Shape) -> tuple[int, int | None]:
        """How many properties there must be and may be, where their order does not see to that already."""
        low, high = shape.property_counts
        required = sum(entry.is_required for entry in self._named)
        if self._free and low > max(required, 1):
            path = next(one.path for one in shape.assertions if one.min_properties == low)
            raise unsupported(
                "minProperties is supported for declared properties; among others, one may come twice and count once",
                (*path, "minProperties"),
            )
        if high is not None and not self._free and high >= len(self._named):
            high = None
        return low if low > required else 0, high

    def _counted(self, count: int) -> int:
        """One property more."""
        return min(count + 1, self._least if self._most is None else self._most)

    def _may_go_on(self, place: Place) -> bool:
        index, count = place
        return (index < len(self._named) or bool(self._free)) and (self._most is None or count < self._most)

    def _may_end(self, place: Place) -> bool:
        index, count = place
        return index >= self._end and count >= self._least
