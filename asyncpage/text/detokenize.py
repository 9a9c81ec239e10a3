"""Token ids into text that is safe to send, as they come.

The detokenizer actor keeps one stream a request.

INVARIANT: what was fed and then flushed gives the same text however it was cut; nothing is given that could still
turn out to be half a character, or a part of a stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from asyncpage.core.sampling import SamplingParams
from asyncpage.text.stop_strings import StopMatcher, StopStrings
from asyncpage.text.tokenizer import Tokenizer

_new_decoder = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """The text of one answer.

    `tokens`: how many ids were fed, up to and including the one that completed a stop string. `matched`: that stop
    string; once it is set, feeding gives nothing any more.
    """

    __slots__ = ("_bytes_by_id", "_decode", "_keeps_match", "_matcher", "_min_tokens", "_size", "matched", "tokens")

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams) -> None:
        self._bytes_by_id = tokenizer.shown_bytes(skip_special=sampling.skip_special_tokens)
        self._size = tokenizer.vocab_size
        # An invalid byte becomes U+FFFD when it is seen to be invalid, an unfinished character at the flush.
        self._decode = _new_decoder("replace").decode
        self._matcher = StopMatcher(StopStrings(sampling.stop)) if sampling.stop else None
        self._min_tokens = sampling.min_tokens
        self._keeps_match = sampling.include_stop_str_in_output
        self.tokens = 0
        self.matched: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether no stop string is looked for, so that `feed_one_each` may feed it."""
        return self._matcher is None

    def echo(self, tokenizer: Tokenizer, ids: Sequence[int]) -> str:
        """The prompt's text, to go before the answer; stop strings in it do not count.

        Control tokens in it are shown, for they were written there, all but a first one that the model asks for.
        """
        if ids and tokenizer.add_bos and ids[0] == tokenizer.bos_id:
            ids = ids[1:]
        return self._decode(b"".join([tokenizer.token_bytes(id) for id in ids]))

    def feed(self, ids: Sequence[int], *, hides_last: bool = False) -> str:
        """The text that may be sent now that `ids` have come. `hides_last`: the last one counts, but is not shown."""
        if self.matched is not None:
            return ""
        shown = ids[:-1] if hides_last else ids
        table, size = self._bytes_by_id, self._size
        if self._matcher is None:
            self.tokens += len(ids)
            # A model's head can be wider than its vocabulary; what lies beyond has no text.
            return self._decode(b"".join([table[id] for id in shown if id < size]))
        text = ""
        for id in shown:
            self.tokens += 1
            new = self._decode(table[id]) if id < size else ""
            if new:
                ready, self.matched = self._matcher.feed(
                    new, counts=self.tokens >= self._min_tokens, keeps_match=self._keeps_match
                )
                text += ready
                if self.matched is not None:
                    return text
        self.tokens += len(ids) - len(shown)
        return text

    def flush(self) -> str:
        """The rest, when the answer has ended; nothing after a stop string."""
        if self.matched is not None:
            return ""
        rest = self._decode(b"", True)
        if self._matcher is None:
            return rest
        # U+FFFD for an unfinished character is not a character that the model chose: it completes no stop string.
        ready, _ = self._matcher.feed(rest, counts=False, keeps_match=self._keeps_match)
        return ready + self._matcher.flush()


def feed_one_each(streams: Sequence[TextStream], ids: Sequence[int]) -> list[str]:
    """Feed one id to each of several plain streams: what a step does most, in one loop without calls of ours."""
    texts = []
    for stream, id in zip(streams, ids, strict=True):
        stream.tokens += 1
        texts.append(stream._decode(stream._bytes_by_id[id]) if id < stream._size else "")
    return texts
