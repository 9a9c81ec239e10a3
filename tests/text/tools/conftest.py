"""What the tests of reply readers share: reading a text in pieces, and the parts of it with adjacent ones joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from asyncpage.text.reply import CallArguments, ContentPart, ReasoningPart, ReplyPart, ReplyReader


def read_in(pieces: Sequence[str], reader: ReplyReader) -> list[ReplyPart]:
    """Every part of a text, adjacent ones of a kind joined."""
    joined: list[ReplyPart] = []
    for part in [part for piece in pieces for part in reader.feed(piece)] + [*reader.end()]:
        last = joined[-1] if joined else None
        match last, part:
            case ContentPart(before), ContentPart(text):
                joined[-1] = ContentPart(before + text)
            case ReasoningPart(before), ReasoningPart(text):
                joined[-1] = ReasoningPart(before + text)
            case CallArguments(number, before), CallArguments(index, text) if number == index:
                joined[-1] = CallArguments(index, before + text)
            case _:
                joined.append(part)
    return joined


Read = Callable[[Sequence[str], ReplyReader], list[ReplyPart]]


@pytest.fixture(scope="session")
def read() -> Read:
    return read_in
