"""Token ids into text that is safe to send, as they come.

The detokenizer actor keeps one stream a request, all of them in a `Unison` (`unison.py`).

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
        self._columns: dict[bool, NDArray[np.object_]] = {}
        self._kept = lru_cache(MOST_KEPT)(self._learner)
        self._learners = 0

    def open(self, sampling: SamplingParams, echo: Sequence[int] = ()) -> TextStream:
        """The text of one answer, with the prompt `echo` before it."""
        is_short = sum(map(len, sampling.stop)) <= MOST_KEPT_CHARACTERS
        learner = (self._kept if is_short else self._learner)(sampling.stop, sampling.skip_special_tokens)
        return TextStream(self.tokenizer, learner, sampling, echo)

    def _learner(self, stop: tuple[str, ...], skip_special: bool) -> Learner:
        column = self._columns.get(skip_special)
        if column is None:
            texts = self.tokenizer.shown_texts(skip_special=skip_special)
            column = self._columns[skip_special] = np.array([*texts, ""], dtype=object)
        self._learners += 1
        return Learner(self._learners, self.tokenizer, stop, skip_special, column)


class Learner:
    """A set of stop strings, and what its streams have learnt. `number`: its own among those of one `TextStreams`.

    `unclear`: of each id, False when its text can go out as it is from a stream that holds nothing back: it is whole
    characters, ends no stop string and begins none at its end. Known from the beginning where there are no stop
    strings; otherwise a stream that came through the careful way unharmed marks the id. The last entry stands for ids
    beyond the vocabulary, which a model's head can be wide enough for. `column`: `shown_texts` as an array.
    """

    __slots__ = ("column", "number", "shown_bytes", "shown_texts", "strings", "unclear")

    def __init__(
        self,
        number: int,
        tokenizer: Tokenizer,
        stop: tuple[str, ...],
        skip_special: bool,
        column: NDArray[np.object_],
    ) -> None:
        self.number = number
        self.column = column
        self.shown_bytes = tokenizer.shown_bytes(skip_special=skip_special)
        self.shown_texts = tokenizer.shown_texts(skip_special=skip_special)
        self.strings = StopStrings(stop) if stop else None
        self.unclear: NDArray[np.bool_] = np.ones(tokenizer.vocab_size + 1, dtype=np.bool_)
        if not stop:
            self.unclear[:-1] = [text is None for text in self.shown_texts]


class TextStream:
    """The text of one answer.

    `tokens`: how many ids were fed, up to and including the one that completed a stop string. `matched`: that stop
    string; once it is set, feeding gives nothing any more. `is_over`: it is set, or the last id has come.
    `is_held`: the next id has to be looked at whatever it is.
    """

    __slots__ = (
        "_before",
        "_hides_last",
        "_holds",
        "_is_last",
        "_keeps_match",
        "_matcher",
        "_min_tokens",
        "_pending",
        "is_held",
        "is_over",
        "learner",
        "matched",
        "tokens",
    )

    def __init__(self, tokenizer: Tokenizer, learner: Learner, sampling: SamplingParams, echo: Sequence[int]) -> None:
        self.learner = learner
        self._pending = b""  # the beginning of a character
        self._matcher = StopMatcher(learner.strings) if learner.strings is not None else None
        self._min_tokens = sampling.min_tokens
        self._keeps_match = sampling.include_stop_str_in_output
        self._is_last = self._hides_last = False
        self.tokens = 0
        self.matched: str | None = None
        self.is_over = False
        self._before = self._echoed(tokenizer, echo) if echo else ""
        self._holds = self.is_held = bool(self._before or self._pending)

    def expect_end(self, *, hides_last: bool = False) -> None:
        """The next ids that are fed are the last: with them comes all that was held back.

        `hides_last`: the last of them counts, but is not shown.
        """
        self._is_last, self._hides_last = True, hides_last
        self.is_held = True

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
        if self._pending:
            rest, self._pending = self._pending.decode("utf-8", "replace"), b""
            if self._matcher is not None:
                # U+FFFD for an unfinished character is none that the model chose: it completes no stop string.
                rest, _ = self._matcher.feed(rest, counts=False, keeps_match=self._keeps_match)
            text += rest
        return text if self._matcher is None else text + self._matcher.flush()

    def _echoed(self, tokenizer: Tokenizer, ids: Sequence[int]) -> str:
        """The prompt's text, to go before the answer; stop strings in it do not count.

        Control tokens in it are shown, for they were written there, all but a first one that the model asks for. The
        space that its vocabulary puts in front of a text is none of it; one that an answer begins with parts it from
        its prompt.
        """
        if tokenizer.add_bos and ids[0] == tokenizer.bos_id:
            ids = ids[1:]
        text = self._decode(b"".join([tokenizer.token_bytes(id) for id in ids]))
        return text.removeprefix(" ") if tokenizer.drops_first_space else text

    def feed_one(self, id: int) -> str:
        """The same for one id."""
        self.tokens += 1
        learner = self.learner
        if not self._holds and id < len(learner.shown_texts) and not learner.unclear[id]:
            self.is_over = self._is_last
            return "" if self._hides_last else learner.shown_texts[id] or ""
        before, self._before = self._before, ""
        new = "" if self._hides_last else self._shown(id)
        if not self.is_held and self._learns(id, new):
            learner.unclear[id] = False
            return new
        return before + new + self._rest()

    def _learns(self, id: int, new: str) -> bool:
        """Whether `id`, which gave `new` to a stream that held nothing back, will always give it to such a one."""
        matcher = self._matcher
        return (
            matcher is not None
            and id < len(self.learner.shown_texts)
            and new == self.learner.shown_texts[id]
            and not matcher.holds
            and self.matched is None
            and self.tokens >= self._min_tokens  # a stop string that ended in it would have matched
        )

    def _rest(self) -> str:
        """Behind every careful feeding: what comes with the last id, and how the next one is to be looked at."""
        rest = self.flush() if self._is_last else ""
        self.is_over = self._is_last or self.matched is not None
        self._holds = bool(self._pending) or (self._matcher is not None and self._matcher.holds)
        self.is_held = self._holds or self._is_last
        return rest

    def _shown(self, id: int) -> str:
        """What one more token lets out."""
        # A model's head can be wider than its vocabulary; what lies beyond has no text.
        learner = self.learner
        is_known = id < len(learner.shown_texts)
        text = learner.shown_texts[id] if is_known else ""
        if text is None or self._pending:
            text = self._decode(learner.shown_bytes[id] if is_known else b"")
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
