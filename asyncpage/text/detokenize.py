"""Token ids into text that is safe to send, as they come.

The detokenizer actor keeps one stream a request.

INVARIANT: what was fed and then flushed gives the same text however it was cut; nothing is given that could still
turn out to be half a character, or a part of a stop string.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from asyncpage.core.sampling import SamplingParams
from asyncpage.text.stop_strings import StopMatcher, StopStrings
from asyncpage.text.tokenizer import Tokenizer


class TextStream:
    """The text of one answer.

    `tokens`: how many ids were fed, up to and including the one that completed a stop string. `matched`: that stop
    string; once it is set, feeding gives nothing any more.
    """

    __slots__ = (
        "_bytes",
        "_keeps_match",
        "_matcher",
        "_min_tokens",
        "_pending",
        "_size",
        "_texts",
        "matched",
        "tokens",
    )

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams) -> None:
        self._bytes = tokenizer.shown_bytes(skip_special=sampling.skip_special_tokens)
        self._texts = tokenizer.shown_texts(skip_special=sampling.skip_special_tokens)
        self._size = tokenizer.vocab_size
        self._pending = b""  # the beginning of a character
        self._matcher = StopMatcher(StopStrings(sampling.stop)) if sampling.stop else None
        self._min_tokens = sampling.min_tokens
        self._keeps_match = sampling.include_stop_str_in_output
        self.tokens = 0
        self.matched: str | None = None

    def echo(self, tokenizer: Tokenizer, ids: Sequence[int]) -> str:
        """The prompt's text, to go before the answer; stop strings in it do not count.

        Control tokens in it are shown, for they were written there, all but a first one that the model asks for.
        """
        if ids and tokenizer.add_bos and ids[0] == tokenizer.bos_id:
            ids = ids[1:]
        return self._decode(b"".join([tokenizer.token_bytes(id) for id in ids]))

    def feed(self, ids: Sequence[int], *, hides_last: bool = False) -> str:
        """The text that may be sent now that `ids` have come. `hides_last`: the last one counts, but is not shown."""
        last = len(ids) - 1 if hides_last else len(ids)
        text = ""
        for at, id in enumerate(ids):
            if self.matched is not None:
                break
            self.tokens += 1
            if at < last:
                text += self._shown(id)
        return text

    def flush(self) -> str:
        """The rest, when the answer has ended; nothing after a stop string."""
        if self.matched is not None:
            return ""
        rest, self._pending = self._pending.decode("utf-8", "replace"), b""
        if self._matcher is None:
            return rest
        # U+FFFD for an unfinished character is not a character that the model chose: it completes no stop string.
        ready, _ = self._matcher.feed(rest, counts=False, keeps_match=self._keeps_match)
        return ready + self._matcher.flush()

    def _shown(self, id: int) -> str:
        """What one more token lets out."""
        # A model's head can be wider than its vocabulary; what lies beyond has no text.
        text = self._texts[id] if id < self._size else ""
        if text is None or self._pending:
            text = self._decode(self._bytes[id] if id < self._size else b"")
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
    """Feed one id to each of several streams, what a step does most: the texts, and where a stop string matched.

    The same as `feed` for each of them, with nothing done twice.
    """
    texts = []
    matched = []
    for at, (stream, id) in enumerate(zip(streams, ids, strict=True)):
        stream.tokens += 1
        if stream._matcher is None and not stream._pending and id < stream._size:
            text = stream._texts[id]
            texts.append(stream._shown(id) if text is None else text)
        else:
            texts.append(stream._shown(id))
            if stream.matched is not None:
                matched.append(at)
    return texts, matched
