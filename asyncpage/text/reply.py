"""What an answer's text means: content, reasoning, and calls of tools, told apart while it streams.

A call of the server has one reader a choice, made by the tool and reasoning parsers that serve the model; every
dialect of the API is written from the parts that it gives.

INVARIANT: cut in whatever pieces, a text gives the same parts, once adjacent ones of a kind are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from asyncpage.records import record


@record(frozen=True, slots=True)
class ContentPart:
    """More of what the answer says."""

    text: str


@record(frozen=True, slots=True)
class ReasoningPart:
    """More of what the model thinks before it answers."""

    text: str


@record(frozen=True, slots=True)
class CallBegun:
    """The answer's call number `index`, from 0, of the tool `name`; its arguments follow."""

    index: int
    name: str


@record(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments: together they are one JSON text."""

    index: int
    text: str


@record(frozen=True, slots=True)
class CallEnded:
    """A call's arguments are complete."""

    index: int


ReplyPart = ContentPart | ReasoningPart | CallBegun | CallArguments | CallEnded


class ReplyReader(Protocol):
    """Reads one choice's text in order. What may yet turn out to be a marker is held back until it is decided."""

    def feed(self, text: str) -> Sequence[ReplyPart]: ...

    def end(self) -> Sequence[ReplyPart]:
        """The rest, when nothing more comes: an unfinished marker is content.

        A call whose name is known ends with the arguments that came; what is cut off of its markup is left out.
        """
        ...


class PlainReader:
    """All of it is content."""

    def feed(self, text: str) -> Sequence[ReplyPart]:
        return (ContentPart(text),) if text else ()

    def end(self) -> Sequence[ReplyPart]:
        return ()


class FilteredReader:
    """Lets through what another reader gives where `keeps` is true of it."""

    def __init__(self, inner: ReplyReader, keeps: Callable[[ReplyPart], bool]) -> None:
        self._inner = inner
        self._keeps = keeps

    def feed(self, text: str) -> Sequence[ReplyPart]:
        return [part for part in self._inner.feed(text) if self._keeps(part)]

    def end(self) -> Sequence[ReplyPart]:
        return [part for part in self._inner.end() if self._keeps(part)]


def is_no_reasoning(part: ReplyPart) -> bool:
    return not isinstance(part, ReasoningPart)


def is_no_later_call(part: ReplyPart) -> bool:
    """For requests that can handle one call."""
    return not isinstance(part, CallBegun | CallArguments | CallEnded) or part.index == 0
