"""Arrays whose items all differ: of a few listed values, each at most once, in any order.

The compiler writes with it. Which values are left is a place of its own, so there are two to the power of their number.

INVARIANT: exactly the arrays match whose items are listed, differ, and are as many as the shape allows.
"""

from __future__ import annotations

from asyncpage.grammar.builder import NetworkBuilder
from asyncpage.grammar.json_text import JsonText
from asyncpage.grammar.refusal import unsupported
from asyncpage.grammar.schema_check import Resolver, listed_values
from asyncpage.grammar.schema_shape import Shape
from asyncpage.grammar.schema_value import key_of

MAX_VALUES = 8


def write_set(
    builder: NetworkBuilder, json: JsonText, shape: Shape, resolver: Resolver, source: int, target: int
) -> None:
    """The arrays of a shape from `source` to `target`. Errors: 400 unless its items are few listed values."""
    items = [Shape(one) for one in resolver.of_all(shape.item_sites(0))]
    values = {key_of(value): value for item in items for value in listed_values(item, resolver)}
    is_listed = all(item.values is not None or item.types <= {"boolean", "null"} for item in items)
    if shape.prefix or not is_listed or len(values) > MAX_VALUES:
        raise unsupported(
            f"uniqueItems is supported for items of at most {MAX_VALUES} listed values: leave it out, or use enum",
            shape.unique_path or (),
        )
    low, high = shape.item_counts
    most = len(values) if high is None else min(high, len(values))
    first, closing = builder.state(), builder.state()
    json.open(source, b"[", first)
    json.close(closing, b"]", target)
    if low == 0:
        builder.literal(first, b"]", target)
    ended: dict[int, int] = {}  # by the values that were written, a bit each
    waiting = [(0, first)]
    while waiting:
        used, here = waiting.pop()
        if used.bit_count() >= most:
            continue
        for index, value in enumerate(values.values()):
            after = used | 1 << index
            if after == used:
                continue
            state = ended.get(after)
            if state is None:
                state = ended[after] = builder.state()
                after_comma = builder.state()
                json.open(state, b",", after_comma)
                waiting.append((after, after_comma))
                if after.bit_count() >= low:
                    builder.jump(state, closing)
            json.constants((value,), here, state)
