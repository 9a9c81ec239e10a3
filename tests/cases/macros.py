"""The macros of the case table: from a request as the file writes it to the bytes that are sent.

INVARIANT: what no macro names stays as it is, and JSON that a macro spells literally (`1e999`, deep nesting) reaches
the wire as it was spelled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Literal:
    """JSON text that is put into a body as it stands."""

    text: str


@dataclass(frozen=True, slots=True)
class Names:
    """What the macros that are names stand for: `$M`, `$KEY`, `$FIX` and so on, and token ids by their text."""

    values: Mapping[str, str]
    vocab_size: int = 512
    ids: Mapping[str, int] = field(default_factory=dict)

    def with_value(self, macro: str, value: str) -> Names:
        return replace(self, values={**self.values, macro: value})


def expand(value: Any, names: Names) -> Any:
    """`value` with every macro replaced. `$sweep` must have been spread out by `sweep` before."""
    match value:
        case {"$repeat": [item, int(times)]}:
            return expand(item, names) * times
        case {"$range": [first, end]}:
            # Ids past the end of a small vocabulary begin again, so that a length is what is tried, not an id.
            room = names.vocab_size - 5
            return [id if id < names.vocab_size else 5 + (id - 5) % room for id in range(first, end)]
        case {"$nest": [opening, core, closing, int(depth)]}:
            return Literal(opening * depth + core + closing * depth)
        case {"$concat": list(parts)}:
            return "".join(expand(part, names) for part in parts)
        case {"$tokens": list(texts)}:
            return [names.ids[text] for text in texts]
        case {"$raw": str(text)}:
            return Literal(text)
        case {"$hex": str(text)}:
            return bytes.fromhex(text)
        case {"$bias_all": int(count)}:
            return {str(token): 1 for token in range(count)}
        case dict():
            return {_name(key, names): expand(item, names) for key, item in value.items()}
        case list():
            return [expand(item, names) for item in value]
        case str():
            return _name(value, names)
        case _:
            return value


def sweep(request: Any) -> Iterator[Any]:
    """The requests that one with a `$sweep` stands for, one for each value; others are only themselves."""
    text = json.dumps(request)
    found = re.search(r'\{"\$sweep": \[(\d+), (\d+)\]\}', text)
    if found is None:
        yield request
        return
    for value in range(int(found[1]), int(found[2]) + 1):
        yield json.loads(text.replace(found[0], str(value)))


def to_json(value: Any) -> bytes:
    """The body's bytes, literals included."""
    literals: list[str] = []

    def mark(literal: Any) -> str:
        assert isinstance(literal, Literal), literal
        literals.append(literal.text)
        return f"\0{len(literals) - 1}\0"

    text = json.dumps(value, default=mark)
    for index, literal in enumerate(literals):
        text = text.replace(f'"\\u0000{index}\\u0000"', literal, 1)
    return text.encode()


def _name(text: str, names: Names) -> str:
    if text == "$vocab_size":
        return str(names.vocab_size)
    if text.startswith("$id("):
        return str(names.ids[text[4:-1]])
    for macro, value in names.values.items():
        text = text.replace(macro, value)
    return text
