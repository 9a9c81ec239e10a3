"""The parts that a `tokenizer.json` is put together from, each checked for its form.

`tokenizer_json` and `sentence_piece_json` read through it.

INVARIANT: what has another form than was asked for is refused by file and place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncpage.errors import FormatError, ModelError

Part = dict[str, Any]


class JsonParts:
    """`file`: its name, for errors."""

    def __init__(self, file: str) -> None:
        self.file = file

    def flat(self, part: object, where: str, key: str) -> Iterator[Part]:
        """The parts of a part that may be none, one, or a Sequence, whose own are under `key`."""
        if part is None:
            return
        part = self.mapping(part, where)
        if not isinstance(part.get("type"), str):
            raise self.wrong(f"{where}.type", part.get("type"), "a type's name")
        if part["type"] != "Sequence":
            yield part
            return
        for item in self.items(part.get(key), f"{where}.{key}"):
            inner = self.mapping(item, where)
            if not isinstance(inner.get("type"), str) or inner["type"] == "Sequence":
                raise self.unsupported(f"{where} in a Sequence", inner.get("type"), "a plain part")
            yield inner

    def mapping(self, value: object, where: str) -> Part:
        if not isinstance(value, dict):
            raise self.wrong(where, value, "an object")
        return value

    def items(self, value: object, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.wrong(where, value, "a list")
        return value

    def wrong(self, where: str, value: object, needed: str) -> FormatError:
        return FormatError(self.file, where, f"found {_short(value)}, {needed} is needed")

    def unsupported(self, what: str, found: object, known: str) -> ModelError:
        return ModelError(f"{self.file}: {what} {_short(found)} is not supported; supported is {known}")


def names(parts: list[Part]) -> str | None:
    """The types of parts, for an error."""
    return " + ".join(part["type"] for part in parts) or None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + " ..."
