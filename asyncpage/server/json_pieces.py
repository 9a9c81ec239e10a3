"""JSON of large answers, written piece by piece so that nothing else waits for the whole.

The collector writes answers with many log-probabilities through it, in a thread: the standard encoder does not let
go of the interpreter until it is done, which for 20 MB takes a second.

INVARIANT: the pieces, joined, are what `json.dumps` gives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

LEVELS = 5
"""Answer, choices, a choice, its log-probabilities, their list: below it a value is one token's, and small."""


def json_pieces(value: Any, levels: int = LEVELS) -> Iterator[str]:
    """The JSON of dictionaries with string keys, lists and plain values; what is deeper than `levels` in one piece."""
    if levels and value and isinstance(value, dict):
        yield "{"
        for place, (key, item) in enumerate(value.items()):
            yield f"{', ' if place else ''}{json.dumps(key)}: "
            yield from json_pieces(item, levels - 1)
        yield "}"
    elif levels and value and isinstance(value, list):
        yield "["
        for place, item in enumerate(value):
            if place:
                yield ", "
            yield from json_pieces(item, levels - 1)
        yield "]"
    else:
        yield json.dumps(value)
