"""Keeps the text of control tokens in a conversation plain text.

`chat_template` guards what a client wrote before rendering; the tokenizer takes the guard out again after it has
looked for control tokens, so the text comes out as it was written.

INVARIANT: in a rendered text no control token begins or ends with a character that a client wrote, be the rest in the
same string, in a neighbouring one or in the template. A template that puts its own marks around a whole string, as
some do around a role, means it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from asyncpage.errors import RequestError
from asyncpage.text.alternatives import any_of

# Unicode says of these that they are no characters and never will be, for use inside of one program.
NONCHARACTERS = (
    *range(0xFDD0, 0xFDF0),
    *(plane + last for plane in range(0, 0x110000, 0x10000) for last in (0xFFFE, 0xFFFF)),
)


class ControlGuard:
    """The texts of one vocabulary's control tokens. `is_nfc`: what the tokenizer would make of a text is searched."""

    def __init__(self, control_texts: Iterable[str], is_nfc: bool) -> None:
        texts = set(control_texts)
        longer = [text for text in texts if len(text) > 1]
        self._is_nfc = is_nfc
        self._single = frozenset(text for text in texts if len(text) == 1)
        self._any = re.compile(any_of(longer)) if longer else None
        # Every place where one begins, also inside of another.
        self._begins = re.compile(f"(?={any_of(longer)})(.)", re.DOTALL) if longer else None
        self._heads = frozenset(text[:end] for text in longer for end in range(1, len(text)))
        self._tails = frozenset(text[start:] for text in longer for start in range(1, len(text)))
        self._last = frozenset(head[-1] for head in self._heads)
        self._first = frozenset(tail[0] for tail in self._tails)
        self._longest = max(map(len, longer), default=1)

    def choose(self, strings: Iterable[str], taken: str = "") -> str:
        """A noncharacter that is in none of `strings`, and not `taken`.

        Errors: `RequestError` when all of them are in use.
        """
        left = [chr(point) for point in NONCHARACTERS if chr(point) != taken]
        for string in strings:
            if left[0] in string:
                left = [character for character in left if character not in string]
                if not left:
                    raise RequestError(
                        "the conversation holds every Unicode noncharacter; leave one out", param="messages"
                    )
        return left[0]

    def plain(self, text: str, guard: str) -> str:
        """`text` with `guard` inside of every control token's text, and where a part of one touches its ends.

        Errors: `RequestError` for a control token of one character, which cannot be kept apart.
        """
        if self._single and not self._single.isdisjoint(text):
            raise RequestError(
                "the conversation holds a character that is a control token of this model", param="messages"
            )
        if self._any is None or self._begins is None or not text:
            return text
        if self._is_nfc:
            text = unicodedata.normalize("NFC", text)
        # Looked at before anything is put in: the ends are those of the text as it was written.
        is_open = text[-1] in self._last and any(text[-n:] in self._heads for n in range(1, self._longest))
        is_closed = text[0] in self._first and any(text[:n] in self._tails for n in range(1, self._longest))
        if self._any.search(text):
            text = self._begins.sub(rf"\1{guard}", text)
        return f"{guard if is_closed else ''}{text}{guard if is_open else ''}"

    def plain_value(self, value: Any, guard: str) -> Any:
        """The same of every string in a JSON value, keys too; a copy of lists and objects."""
        if isinstance(value, str):
            return self.plain(value, guard)
        if isinstance(value, Mapping):
            return {self.plain(key, guard): self.plain_value(item, guard) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain_value(item, guard) for item in value]
        return value


def strings_in(value: Any) -> tuple[list[str], int]:
    """Every string in a JSON value, keys too, and how many values it is made of."""
    found: list[str] = []
    stack = [value]
    nodes = 0
    while stack:
        item = stack.pop()
        nodes += 1
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, Mapping):
            found += item
            stack += item.values()
        elif isinstance(item, list | tuple):
            stack += item
    return found, nodes
