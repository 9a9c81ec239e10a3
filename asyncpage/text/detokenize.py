"""Token ids into text that is safe to send, as they come.

The detokenizer actor keeps one stream a request.

INVARIANT: what was fed and then flushed gives the same text however it was cut; nothing is given that could still
turn out to be half a character, or a part of a stop string.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from asyncpage.core.sampling import SamplingParams
from asyncpage.messages import Int32
from asyncpage.text.stop_strings import StopMatcher, StopStrings
from asyncpage.text.tokenizer import Tokenizer

MOST_KEPT = 64
"""Sets of stop strings that are kept for the next request that brings them, each with a byte a token."""

MOST_KEPT_CHARACTERS = 256
"""Of one set in all: a longer one takes too much room to be kept."""


class TextStreams:
    """Opens the streams of one tokenizer. Those with the same stop strings share what was learnt of its tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.nothing_clear = bytes(tokenizer.vocab_size)
        self._columns: dict[bool, NDArray[np.object_]] = {}
        self._kept = lru_cache(MOST_KEPT)(self._learner)

    def open(self, sampling: SamplingParams, echo: Sequence[int] = ()) -> TextStream:
        """The text of one answer, with the prompt `echo` before it."""
        is_short = sum(map(len, sampling.stop)) <= MOST_KEPT_CHARACTERS
        learner = (self._kept if is_short else self._learner)(sampling.stop, sampling.skip_special_tokens)
        return TextStream(self, learner, sampling, echo)

    def _learner(self, stop: tuple[str, ...], skip_special: bool) -> _Learner:
        column = self._columns.get(skip_special)
        if column is None:
            texts = self.tokenizer.shown_texts(skip_special=skip_special)
            column = self._columns[skip_special] = np.array([*texts, ""], dtype=object)
        return _Learner(self.tokenizer, stop, skip_special, column)


class _Learner:
    """A set of stop strings, and what its streams have learnt.

    `clear`: a byte for each id, not 0 when the id's text can go out as it is from a stream that holds nothing back:
    it is whole characters, ends no stop string and begins none at its end. Known from the beginning where there are
    no stop strings; otherwise a stream that came through the careful way unharmed marks the id. One byte more stands
    for ids beyond the vocabulary, which a model's head can be wide enough for. `column`: `shown_texts` as an array.
    """

    __slots__ = ("clear", "column", "shown_bytes", "shown_texts", "strings")

    def __init__(
        self, tokenizer: Tokenizer, stop: tuple[str, ...], skip_special: bool, column: NDArray[np.object_]
    ) -> None:
        self.column = column
        self.shown_bytes = tokenizer.shown_bytes(skip_special=skip_special)
        self.shown_texts = tokenizer.shown_texts(skip_special=skip_special)
        self.strings = StopStrings(stop) if stop else None
        self.clear = bytearray(tokenizer.vocab_size + 1)
        if not stop:
            self.clear[:-1] = bytes(text is not None for text in self.shown_texts)


class TextStream:
    """The text of one answer.

    `tokens`: how many ids were fed, up to and including the one that completed a stop string. `matched`: that stop
    string; once it is set, feeding gives nothing any more. `is_over`: it is set, or the last id has come.
    """

    __slots__ = (
        "_before",
        "_clear",
        "_hides_last",
        "_is_last",
        "_keeps_match",
        "_learner",
        "_matcher",
        "_min_tokens",
        "_nothing_clear",
        "_pending",
        "_texts",
        "is_over",
        "matched",
        "tokens",
    )

    def __init__(self, streams: TextStreams, learner: _Learner, sampling: SamplingParams, echo: Sequence[int]) -> None:
        self._learner = learner
        self._texts = learner.shown_texts
        self._nothing_clear = streams.nothing_clear
        self._pending = b""  # the beginning of a character
        self._matcher = StopMatcher(learner.strings) if learner.strings is not None else None
        self._min_tokens = sampling.min_tokens
        self._keeps_match = sampling.include_stop_str_in_output
        self._is_last = self._hides_last = False
        self.tokens = 0
        self.matched: str | None = None
        self.is_over = False
        self._before = self._echoed(streams.tokenizer, echo) if echo else ""
        # What is known of the ids while nothing is held back, and otherwise nothing.
        self._clear: Sequence[int] = self._nothing_clear if self._before or self._pending else learner.clear

    def expect_end(self, *, hides_last: bool = False) -> None:
        """The next ids that are fed are the last: with them comes all that was held back.

        `hides_last`: the last of them counts, but is not shown.
        """
        self._is_last, self._hides_last = True, hides_last
        self._clear = self._nothing_clear

    def feed(self, ids: Sequence[int]) -> str:
        """The text that may be sent now that `ids` have come."""
        text, self._before = self._before, ""
        shown = len(ids) - 1 if self._hides_last else len(ids)
        for at, id in enumerate(ids):
            if self.matched is not None:
                break
            self.tokens += 1
            if at < shown:
                text += self._shown(id)
        return text + self._rest()

    def flush(self) -> str:
        """The rest, when the answer has ended; nothing after a stop string."""
        if self.matched is not None:
            return ""
        text, self._before = self._before, ""
        rest, self._pending = self._pending.decode("utf-8", "replace"), b""
        if self._matcher is None:
            return text + rest
        # U+FFFD for an unfinished character is not a character that the model chose: it completes no stop string.
        ready, _ = self._matcher.feed(rest, counts=False, keeps_match=self._keeps_match)
        return text + ready + self._matcher.flush()

    def _echoed(self, tokenizer: Tokenizer, ids: Sequence[int]) -> str:
        """The prompt's text, to go before the answer; stop strings in it do not count.

        Control tokens in it are shown, for they were written there, all but a first one that the model asks for.
        """
        if tokenizer.add_bos and ids[0] == tokenizer.bos_id:
            ids = ids[1:]
        return self._decode(b"".join([tokenizer.token_bytes(id) for id in ids]))

    def _fed_one(self, id: int) -> str:
        """What one more id gives when it cannot be seen at a glance. `tokens` has counted it already."""
        before, self._before = self._before, ""
        held_nothing = self._clear is self._learner.clear
        new = "" if self._hides_last else self._shown(id)
        if held_nothing and self._learns(id, new):
            self._learner.clear[id] = 1
            return new
        return before + new + self._rest()

    def _learns(self, id: int, new: str) -> bool:
        """Whether `id`, which gave `new` to a stream that held nothing back, will always give it to such a one."""
        matcher = self._matcher
        return (
            matcher is not None
            and id < len(self._texts)
            and new == self._texts[id]
            and not matcher.holds
            and self.matched is None
            and self.tokens >= self._min_tokens  # a stop string that ended in it would have matched
        )

    def _rest(self) -> str:
        """Behind every careful feeding: what comes with the last id, and how the next one is to be looked at."""
        rest = self.flush() if self._is_last else ""
        self.is_over = self._is_last or self.matched is not None
        is_held = bool(self._pending) or (self._matcher is not None and self._matcher.holds)
        self._clear = self._nothing_clear if is_held else self._learner.clear
        return rest

    def _shown(self, id: int) -> str:
        """What one more token lets out."""
        # A model's head can be wider than its vocabulary; what lies beyond has no text.
        is_known = id < len(self._texts)
        text = self._texts[id] if is_known else ""
        if text is None or self._pending:
            text = self._decode(self._learner.shown_bytes[id] if is_known else b"")
        if self._matcher is None or not text:
            return text
        text, self.matched = self._matcher.feed(
            text, counts=self.tokens >= self._min_tokens, keeps_match=self._keeps_match
        )
        return text

    def _decode(self, data: bytes) -> str:
        """An invalid byte becomes U+FFFD when it is seen to be invalid; the beginning of a character waits."""
        data = self._pending + data
        text, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text


def feed_one_each(streams: Sequence[TextStream], ids: Sequence[int]) -> tuple[list[str], list[int]]:
    """Feed one id to each of several streams, what a step does most: the texts, and which streams are over.

    The same as `feed` for each of them. 0.1 us an id that is seen through at a glance, 2 for others.
    """
    texts: list[str] = []
    over: list[int] = []
    for stream, id in zip(streams, ids, strict=True):
        stream.tokens += 1
        try:
            is_clear = stream._clear[id]
        except IndexError:
            is_clear = 0
        if is_clear:
            texts.append(stream._texts[id])  # type: ignore[arg-type]  # only ids of whole characters are clear
        else:
            texts.append(stream._fed_one(id))
            if stream.is_over:
                over.append(len(texts) - 1)
    return texts, over


class Unison:
    """Streams that are fed one id each several times over: what is clear is looked up for all of them at once.

    Does what `feed_one_each` does in a third of the time, and costs as much as one of it to form. Between `__init__`
    and `part` the streams are this one's: their `tokens` are kept here, and nothing else may be done with them.
    """

    def __init__(self, streams: Sequence[TextStream]) -> None:
        self._streams = streams
        self._tokens = np.array([stream.tokens for stream in streams])
        self._is_held = np.array([stream._clear is not stream._learner.clear for stream in streams])
        rows: dict[_Learner, list[int]] = {}
        for row, stream in enumerate(streams):
            rows.setdefault(stream._learner, []).append(row)
        self._voices = [_Voice(learner, np.array(own)) for learner, own in rows.items()]

    def feed(self, ids: Int32) -> tuple[list[str], list[int]]:
        """The texts of the next ids [streams], and which streams are over."""
        self._tokens += 1
        if len(self._voices) == 1:
            is_clear, shown = self._voices[0].look(ids)
        else:
            is_clear, shown = np.empty(len(ids), dtype=np.uint8), np.empty(len(ids), dtype=object)
            for voice in self._voices:
                is_clear[voice.rows], shown[voice.rows] = voice.look(ids[voice.rows])
        texts: list[str] = shown.tolist()
        over = []
        for row in np.flatnonzero(self._is_held | (is_clear == 0)).tolist():
            stream = self._streams[row]
            stream.tokens = int(self._tokens[row])
            texts[row] = stream._fed_one(int(ids[row]))
            self._is_held[row] = stream._clear is not stream._learner.clear
            if stream.is_over:
                over.append(row)
        return texts, over

    def part(self) -> None:
        """The streams go their own ways again."""
        for stream, tokens in zip(self._streams, self._tokens.tolist(), strict=True):
            stream.tokens = tokens


class _Voice:
    """The streams of one learner in a unison."""

    __slots__ = ("_clear", "_last", "_texts", "rows")

    def __init__(self, learner: _Learner, rows: NDArray[np.int64]) -> None:
        self.rows = rows
        self._clear = np.frombuffer(learner.clear, dtype=np.uint8)  # the same bytes: what is learnt is seen here
        self._texts = learner.column
        self._last = np.int32(len(self._clear) - 1)

    def look(self, ids: Int32) -> tuple[NDArray[np.uint8], NDArray[np.object_]]:
        """Whether each id is clear, and its text if it is."""
        ids = np.minimum(ids, self._last)
        return self._clear[ids], self._texts[ids]
