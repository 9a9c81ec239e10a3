"""Streams a call: what the engine says becomes events, each written in the call that brought it.

The exchange calls it as its consumer; it writes to the call's `EventStream`, or holds text back while the client or
the loop is behind. Text is spliced into a chunk that was rendered once a choice and kind of part; whatever carries
more is rendered whole.

INVARIANT: what a choice's text means is sent once, in order, all of it before the choice's finish.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from asyncpage.messages import Finish, LogprobEntry
from asyncpage.server.event_stream import DONE, EventStream
from asyncpage.server.exchange import Exchange
from asyncpage.server.failure import error_event
from asyncpage.server.generate.shape import Head, Shape
from asyncpage.server.generate.usage import Usage, total_usage
from asyncpage.server.pace import Pace
from asyncpage.text.reply import CallArguments, CallBegun, CallEnded, ContentPart, PlainReader, ReasoningPart, ReplyPart

# What text is part of; the arguments of a call have its number.
_CONTENT, _REASONING = -1, -2

# Stands for the text while a chunk is rendered once; the last one in the bytes is ours, whatever the model's name.
_MARK = "\ue000"


class ChunkWriter:
    """The consumer of one streamed call."""

    def __init__(self, stream: EventStream, exchange: Exchange, shape: Shape, head: Head, pace: Pace) -> None:
        output = exchange.call.output
        self._stream = stream
        self._exchange = exchange
        self._shape = shape
        self._head = head.to_json(shape.chunk_kind)
        self._pace = pace
        self._output = output
        self._must_allow = (
            set(range(exchange.call.choices)) if output.echo else set()
        )  # choices without their prompt yet
        self._readers = [exchange.call.new_reader() for _ in range(exchange.call.choices)]
        self._has_extras = output.logprobs is not None or output.return_token_ids or output.continuous_usage
        self._is_plain = not self._has_extras and all(isinstance(reader, PlainReader) for reader in self._readers)
        self._splices: dict[int, tuple[str, str]] = {}  # by choice that has begun: a chunk before and after its text
        self._other_splices: dict[tuple[int, int], tuple[str, str]] = {}  # the same by choice and kind of its text
        self._completion_tokens = 0
        self._held_events: list[bytes] = []
        self._held_texts: dict[int, list[str]] = {}  # by choice, all of one kind
        self._held_kinds: dict[int, int] = {}  # of these, where it is not content
        self._held_bytes = 0

    # --- what the engine says ----------------------------------------------------------------------------------------

    def text(self, index: int, text: str, token_ids: Sequence[int], logprobs: Sequence[LogprobEntry] | None) -> None:
        if not self._is_plain:
            self._completion_tokens += len(token_ids)
            self._put_parts(index, self._readers[index].feed(text), token_ids, logprobs or ())
        elif text:
            if self._must_allow:
                self._allow(index, len(quote(text)))
            if self._must_hold():
                self._held_texts.setdefault(index, []).append(text)
                self._hold(len(text))
            else:
                self._pace.wrote()
                self._stream.send(self._splice(index, text))

    def prompt_logprobs(self, index: int, entries: Sequence[LogprobEntry]) -> None:
        if self._output.echo and self._output.logprobs is not None:
            # Each part by itself: all of a long prompt's in one piece would hold up every other stream for a second.
            events = self._render_part(index, None, (), entries)
            self._stream.allow(len(events))
            self._put(events)

    def finished(self, index: int, finish: Finish) -> None:
        if not self._is_plain:
            self._put_parts(index, self._readers[index].end(), (), ())
        events = self._take_text(index)
        self._put(events + self._opening(index) + self._event([self._shape.ending(index, finish)]))

    # --- what the route says -----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send what is held; while the socket is full, try again soon."""
        if not self._held_bytes or self._exchange.is_over:
            return
        if self._stream.is_full:
            self._pace.hold(self)
        else:
            self._pace.wrote()
            self._stream.send(self._take_all())

    def last_events(self) -> bytes:
        """What ends the stream: held text, then usage where it was asked or the failure, then the end mark."""
        held = self._take_all()
        failure = self._exchange.failure
        if failure is not None:
            return held + error_event(failure) + DONE
        if not self._output.include_usage:
            return held + DONE
        finishes = [finish for finish in self._exchange.finishes if finish is not None]
        return held + self._event([], total_usage(finishes, self._exchange.call.sampling.n)) + DONE

    # --- what text means ---------------------------------------------------------------------------------------------

    def _put_parts(
        self, index: int, parts: Sequence[ReplyPart], token_ids: Sequence[int], entries: Sequence[LogprobEntry]
    ) -> None:
        """Each part in a chunk of its own; what belongs to the tokens goes with the first."""
        shown = [part for part in parts if not isinstance(part, CallEnded)]
        if not self._has_extras:
            for part in shown:
                self._put_part(index, part)
        elif shown:
            for part in shown:
                self._put(self._render_part(index, part, token_ids, entries))
                token_ids = entries = ()
        elif token_ids or entries:
            self._put(self._render_part(index, None, token_ids, entries))

    def _put_part(self, index: int, part: ContentPart | ReasoningPart | CallBegun | CallArguments) -> None:
        match part:
            case ContentPart(text):
                kind = _CONTENT
            case ReasoningPart(text):
                kind = _REASONING
            case CallArguments(kind, text):
                pass
            case CallBegun():
                self._turn_held_text(index)
                self._put(self._render_part(index, part, (), ()))
                return
        if self._must_hold():
            if self._held_kinds.get(index, _CONTENT) != kind:
                self._turn_held_text(index)
            if kind != _CONTENT:
                self._held_kinds[index] = kind
            self._held_texts.setdefault(index, []).append(text)
            self._hold(len(text))
        else:
            self._pace.wrote()
            self._stream.send(self._splice_kind(index, kind, text))

    def _turn_held_text(self, index: int) -> None:
        """Text of another kind, or none, follows: what is held becomes an event."""
        events = self._take_text(index)
        if events:
            self._held_events.append(events)
            self._hold(len(events))

    # --- holding back ------------------------------------------------------------------------------------------------

    def _must_hold(self) -> bool:
        return self._held_bytes > 0 or self._pace.is_lagging or self._stream.is_full

    def _put(self, events: bytes) -> None:
        if self._must_hold():
            self._held_events.append(events)
            self._hold(len(events))
        else:
            self._pace.wrote()
            self._stream.send(events)

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self._pace.hold(self)
        self._stream.check_held(self._held_bytes)

    def _take_text(self, index: int) -> bytes:
        text = "".join(self._held_texts.pop(index, ()))
        kind = self._held_kinds.pop(index, _CONTENT)
        self._held_bytes -= len(text)
        return self._splice_kind(index, kind, text) if text else b""

    def _take_all(self) -> bytes:
        events = b"".join([*self._held_events, *(self._take_text(index) for index in tuple(self._held_texts))])
        self._held_events = []
        self._held_bytes = 0
        return events

    # --- rendering ---------------------------------------------------------------------------------------------------

    def _splice(self, index: int, text: str) -> bytes:
        """A chunk with nothing but text. ASCII escapes: no line separator or half character can be in the bytes."""
        splice = self._splices.get(index)
        if splice is not None:
            return (splice[0] + quote(text) + splice[1]).encode("ascii")
        opening = self._opening(index)
        before, after = self._splices[index]
        return opening + (before + quote(text) + after).encode("ascii")

    def _splice_kind(self, index: int, kind: int, text: str) -> bytes:
        """The same for text of any kind."""
        if kind == _CONTENT:
            return self._splice(index, text)
        opening = self._opening(index)
        splice = self._other_splices.get((index, kind))
        if splice is None:
            part = ReasoningPart(_MARK) if kind == _REASONING else CallArguments(kind, _MARK)
            splice = self._other_splices[index, kind] = self._cut(index, part)
        return opening + (splice[0] + quote(text) + splice[1]).encode("ascii")

    def _render_part(
        self, index: int, part: ReplyPart | None, token_ids: Sequence[int], entries: Sequence[LogprobEntry]
    ) -> bytes:
        opening = self._opening(index)
        piece = self._shape.piece(index, part, entries, token_ids if self._output.return_token_ids else None)
        events = opening + self._event([piece])
        if part is not None and self._must_allow:
            self._allow(index, len(events))
        return events

    def _allow(self, index: int, size: int) -> None:
        """A choice's first text has the whole echoed prompt in it, for which no client had time to read."""
        if index in self._must_allow:
            self._must_allow.remove(index)
            self._stream.allow(size)

    def _opening(self, index: int) -> bytes:
        """What comes before anything else of a choice; empty once it has begun."""
        if index in self._splices:
            return b""
        self._splices[index] = self._cut(index, ContentPart(_MARK))
        call = self._exchange.call
        opening = self._shape.opening(index, call.prompts[index // call.sampling.n])
        if opening is None:
            return b""
        event = self._event(**opening)
        if self._output.return_token_ids:  # those of the prompt come all at once
            self._stream.allow(len(event))
        return event

    def _cut(self, index: int, marked: ReplyPart) -> tuple[str, str]:
        """A chunk before and after its text."""
        rendered = self._event([self._shape.piece(index, marked, (), None)]).decode("ascii")
        before, _, after = rendered.rpartition(quote(_MARK))
        return before, after

    def _event(self, choices: list[dict[str, Any]], usage: Usage | None = None, **more: Any) -> bytes:
        body = {**self._head, "choices": choices, **more}
        if self._output.include_usage:
            if usage is None and self._output.continuous_usage:
                usage = Usage(sum(self._exchange.prompt_tokens), self._completion_tokens)
            body["usage"] = None if usage is None else usage.to_json()
        return b"data: " + json.dumps(body, separators=(",", ":")).encode("ascii") + b"\n\n"
