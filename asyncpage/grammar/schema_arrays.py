"""Array shapes: items by position, and how many.

The compiler writes with it.

INVARIANT: exactly the arrays match whose items hold at their places, and whose number is within the bounds.
"""

from __future__ import annotations

from asyncpage.grammar.builder import NetworkBuilder
from asyncpage.grammar.counting import repeat
from asyncpage.grammar.json_text import JsonText
from asyncpage.grammar.schema_shape import Shape
from asyncpage.grammar.schema_site import WriteValue


def write_array(
    builder: NetworkBuilder, json: JsonText, shape: Shape, write_value: WriteValue, source: int, target: int
) -> None:
    """The arrays of a shape from `source` to `target`."""
    low, high = shape.item_counts
    prefix = shape.prefix if high is None else min(shape.prefix, high)
    first, closing = builder.state(), builder.state()
    json.open(source, b"[", first)
    if low == 0:
        builder.literal(first, b"]", target)
    if high == 0 or (high is not None and high < low):
        return
    at = first
    for index in range(max(prefix, 1)):
        ended = builder.state()
        if index:
            after_comma = builder.state()
            json.open(at, b",", after_comma)
            at = after_comma
        write_value(shape.item_sites(index), at, ended)
        if index + 1 >= low:
            builder.jump(ended, closing)
        at = ended
    count = max(prefix, 1)
    rest = shape.item_sites(count)

    def write_next(before: int, behind: int) -> None:
        """A comma and an item; a rule of its own, since long arrays have many."""
        json.shared(("next", rest), write_rule, before, behind)

    def write_rule(start: int, final: int) -> None:
        after_comma = builder.state()
        json.open(start, b",", after_comma)
        write_value(rest, after_comma, final)

    if high is None or count < high:
        repeat(builder, write_next, max(low - count, 0), None if high is None else high - count, at, closing)
    json.close(closing, b"]", target)
