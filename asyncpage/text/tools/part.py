"""The parts of a structure: what a constraint of the kind `structure` is put together from.

The tool and reasoning parsers build with these; `grammar.source` says what each means.

INVARIANT: a part is a JSON value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from asyncpage.errors import RequestError
from asyncpage.grammar.source import MOST_CHARACTERS, GrammarSource

Part = Mapping[str, Any]

NOTHING: Part = {"literal": ""}


def literal(text: str) -> Part:
    return {"literal": text}


def control(text: str) -> Part:
    """The control token of this text, or the text where the model has none."""
    return {"control": text}


def schema(value: Mapping[str, Any]) -> Part:
    """JSON that follows a schema."""
    return {"schema": value}


def sequence(*parts: Part) -> Part:
    return {"sequence": list(parts)}


def any_of(*parts: Part) -> Part:
    return parts[0] if len(parts) == 1 else {"any_of": list(parts)}


def repeat(part: Part, low: int, high: int | None) -> Part:
    """`part` at least `low` times and at most `high` times, None for no limit."""
    return {"repeat": part, "min": low, "max": high}


def optional(part: Part) -> Part:
    return repeat(part, 0, 1)


def free(*markers: str) -> Part:
    """Any text that contains none of `markers`."""
    return {"free": list(markers)}


def beginning_without(character: str, *markers: str) -> Part:
    """Any text without `markers` whose first character, after white space, is not `character`.

    Where the first one is neither of ASCII nor told apart from white space, `character` must not come at all.
    """
    first = any_of(*(literal(chr(code)) for code in range(0x21, 0x7F) if chr(code) != character))
    return any_of(free(character, *markers), sequence(first, free(*markers)))


def in_a_row(part: Part, separator: str, most: int | None) -> Part:
    """`part` at least once and at most `most` times, with or without `separator` before each."""
    if most == 1:
        return part
    return repeat(sequence(any_of(NOTHING, literal(separator)), part), 1, most)


def separated(part: Part, separator: str, most: int | None) -> Part:
    """`part` once, and again behind `separator`, `most` times in all. It stands in the grammar twice."""
    if most == 1:
        return part
    return sequence(part, repeat(sequence(literal(separator), part), 0, None if most is None else most - 1))


def to_source(part: Part, param: str) -> GrammarSource:
    """The constraint that `part` is. `param`: the field that asks for it.

    Errors: `RequestError` (400, code "grammar_too_large"), before all of it is written: schemas stand in a structure as
    often as there are arguments that share their definitions.
    """
    pieces, size = [], 0
    for piece in _pieces(part):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_CHARACTERS:
            raise RequestError(
                f"{param}: as a grammar these take more than {MOST_CHARACTERS} characters; send fewer tools that are "
                "held to their schemas, or smaller schemas (the arguments of a tool may each need its definitions)",
                param=param,
                code="grammar_too_large",
            )
    return GrammarSource("structure", "".join(pieces))


def _pieces(part: Part) -> Iterator[str]:
    """The JSON text of a part, each schema in one piece."""
    for index, (key, value) in enumerate(part.items()):
        yield f"{',' if index else '{'}{_text(key)}:"
        if key in ("sequence", "any_of"):
            for place, inner in enumerate(value):
                yield "," if place else "["
                yield from _pieces(inner)
            yield "]" if value else "[]"
        elif key == "repeat":
            yield from _pieces(value)
        else:
            yield _text(value)
    yield "}"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def from_source(source: GrammarSource) -> Part | None:
    """The answers that a grammar allows as a part; None for a kind that cannot be one."""
    match source.kind:
        case "json_object":
            return schema({"type": "object"})
        case "json_schema":
            return schema(json.loads(source.text))
        case "choice":
            return any_of(*(literal(text) for text in json.loads(source.text)))
        case "structure":
            part: Part = json.loads(source.text)
            return part
        case "regex" | "grammar":
            return None
