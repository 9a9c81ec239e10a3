"""An answer as blocks: text, reasoning and calls, in the order in which they came.

The consumers of a reply read the engine's text into it, at once; what has changed they take when they can tell it.

INVARIANT: however often changes are taken, the blocks come out the same, and one is closed before the next is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from asyncpage.messages import LogprobEntry
from asyncpage.records import record
from asyncpage.server.identity import new_mark
from asyncpage.text.reply import CallArguments, CallBegun, CallEnded, ContentPart, ReasoningPart, ReplyPart, ReplyReader

BlockKind = Literal["text", "reasoning", "call"]
_Entries = Sequence[LogprobEntry]


@dataclass(slots=True, eq=False)
class Block:
    """`number`: its place in the answer, from 0. `name`: of the tool that is called. `mark`: to make names of.

    `entries`: the log-probabilities of a text's tokens, where they are kept. `is_cut`: its end is missing.
    """

    number: int
    kind: BlockKind
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    entries: list[LogprobEntry] = field(default_factory=list)
    mark: str = field(default_factory=new_mark)
    is_closed: bool = False
    is_cut: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@record(frozen=True, slots=True)
class Change:
    """A block has been opened, has grown by `text` and `entries`, or is closed.

    The block itself may be further on by now: changes are told after all of them have happened.
    """

    kind: Literal["opened", "grew", "closed"]
    block: Block
    text: str = ""
    entries: _Entries = ()


class Blocks:
    """The blocks of one choice so far. `reasoning_tokens`: of the answer's, those that were read as reasoning.

    `keeps_entries`: blocks keep their log-probabilities; without it they are only told as they come.
    """

    def __init__(self, reader: ReplyReader, *, keeps_entries: bool) -> None:
        self.blocks: list[Block] = []
        self.reasoning_tokens = 0
        self._reader = reader
        self._keeps_entries = keeps_entries
        self._parts: list[tuple[ReplyPart, _Entries]] = []  # read and not taken
        self._entries: list[LogprobEntry] = []  # of tokens whose text the reader still holds back
        self._is_reasoning = False
        self._is_over = False
        self._is_cut = False
        self._open: Block | None = None

    def read(self, text: str, tokens: int, entries: _Entries) -> None:
        """More of the answer's text, and how many tokens it took."""
        parts = self._reader.feed(text) if text else ()
        self._entries += entries
        if parts:
            self._is_reasoning = isinstance(parts[-1], ReasoningPart)
            self._put(parts)
        if self._is_reasoning:
            self.reasoning_tokens += tokens

    def end(self, *, is_cut: bool) -> None:
        """Nothing more comes. `is_cut`: because the answer had become long enough."""
        parts = list(self._reader.end())
        while is_cut and parts and isinstance(parts[-1], CallEnded):
            parts.pop()  # it has not ended, it was ended
        if parts:
            self._put(parts)
        self._is_over = True
        self._is_cut = is_cut

    def take(self) -> Sequence[Change]:
        """What has changed since the last time; parts of one kind that have come together are one change."""
        parts, self._parts = self._parts, []
        block = self._open
        if len(parts) == 1 and block is not None and block.kind == "text" and not self._is_over:
            # One more piece of text, as most tokens are: a third of what the general way takes.
            part, entries = parts[0]
            if isinstance(part, ContentPart):
                return (self._grown(block, part.text, entries),)
        return tuple(self._changes(parts))

    def _changes(self, parts: list[tuple[ReplyPart, _Entries]]) -> Iterator[Change]:
        for _, alike in groupby(parts, _likeness):
            run = list(alike)
            match run[0][0]:
                case CallBegun(_, name):
                    yield from self._begin("call", name)
                case CallEnded():
                    yield from self._close()
                case part:
                    text = "".join(part.text for part, _ in run if not isinstance(part, CallBegun | CallEnded))
                    kind: BlockKind = _KINDS[type(part)]
                    yield from self._grow(kind, text, [entry for _, entries in run for entry in entries])
        if self._is_over:
            self._is_over = False
            yield from self._end()

    def _put(self, parts: Sequence[ReplyPart]) -> None:
        """Log-probabilities go with the first text among the parts; where there is none, their tokens were no text."""
        if not self._entries:
            self._parts += [(part, ()) for part in parts]
            return
        entries: _Entries
        entries, self._entries = self._entries, []
        for part in parts:
            if entries and isinstance(part, ContentPart):
                self._parts.append((part, entries))
                entries = ()
            else:
                self._parts.append((part, ()))

    def _grow(self, kind: BlockKind, text: str, entries: _Entries) -> Iterator[Change]:
        if self._open is None or self._open.kind != kind:
            assert kind != "call", "arguments of a call that was not begun"
            yield from self._begin(kind)
        assert self._open is not None
        yield self._grown(self._open, text, entries)

    def _grown(self, block: Block, text: str, entries: _Entries) -> Change:
        block.pieces.append(text)
        if self._keeps_entries:
            block.entries += entries
        return Change("grew", block, text, entries)

    def _begin(self, kind: BlockKind, name: str = "") -> Iterator[Change]:
        yield from self._close()
        self._open = Block(len(self.blocks), kind, name)
        self.blocks.append(self._open)
        yield Change("opened", self._open)

    def _close(self, *, is_cut: bool = False) -> Iterator[Change]:
        block, self._open = self._open, None
        if block is not None:
            block.is_closed, block.is_cut = True, is_cut
            yield Change("closed", block)

    def _end(self) -> Iterator[Change]:
        if self._entries and self._open is not None and self._open.kind == "text":
            # Tokens without a text of their own, such as the one that ended the answer.
            entries, self._entries = self._entries, []
            yield from self._grow("text", "", entries)
        yield from self._close(is_cut=self._is_cut)


_KINDS: dict[type, BlockKind] = {ContentPart: "text", ReasoningPart: "reasoning", CallArguments: "call"}


def _likeness(item: tuple[ReplyPart, _Entries]) -> tuple[type, int]:
    """Equal for parts that are one piece when they stand side by side."""
    part = item[0]
    return type(part), -1 if isinstance(part, ContentPart | ReasoningPart) else part.index
