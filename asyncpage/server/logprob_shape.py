"""Log-probabilities in the three shapes that clients know: chat, text completion, and the prompt's own list.

The answer shapes call these with the engine's entries.

INVARIANT: every number is finite JSON; alternatives that cannot be drawn (-inf) are left out, and a chosen token's
is never below `FLOOR`.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from typing import Any

from asyncpage.messages import TokenLogprob

FLOOR = -9999.0
"""What the OpenAI API shows for a token whose probability is next to nothing."""


def chat_logprobs(entries: Iterable[TokenLogprob], most: int) -> dict[str, Any]:
    """The `logprobs` of a chat choice: one entry a token, with at most `most` alternatives."""
    content = [
        {
            "token": entry.text,
            "logprob": _floored(entry.logprob),
            "bytes": list(entry.raw),
            "top_logprobs": [
                {"token": text, "logprob": logprob, "bytes": list(raw)}
                for _, text, raw, logprob in entry.top[:most]
                if math.isfinite(logprob)
            ],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The `logprobs` of one text completion choice, in one piece or streamed in several.

    `text_offset` counts characters of the choice's text; a token that ends inside a character starts where that
    character does.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The next tokens' entries. The prompt's first token has neither logprob nor alternatives."""
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(entry.raw))
        return {
            "tokens": [entry.text for entry in entries],
            "token_logprobs": [None if entry.logprob is None else _floored(entry.logprob) for entry in entries],
            "top_logprobs": [None if entry.logprob is None else self._alternatives(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _alternatives(self, entry: TokenLogprob) -> dict[str, float]:
        """By text, the chosen token always among them and with the very same number.

        Different tokens can have one text (pieces of a character, for one): a later one is shown by its id.
        """
        table = {entry.text: _floored(entry.logprob)}
        for token, text, _, logprob in entry.top[: self._most]:
            if token != entry.token and math.isfinite(logprob):
                table[text if text not in table else f"token_id:{token}"] = logprob
        return table


def prompt_logprobs(entries: Iterable[TokenLogprob], most: int) -> list[dict[str, Any] | None]:
    """The `prompt_logprobs` extension: for each prompt token its own entry and `most` alternatives, by token id."""
    return [None if entry.logprob is None else _by_id(entry, most) for entry in entries]


def _by_id(entry: TokenLogprob, most: int) -> dict[str, Any]:
    table = {str(entry.token): {"logprob": _floored(entry.logprob), "rank": entry.rank, "decoded_token": entry.text}}
    for place, (token, text, _, logprob) in enumerate(entry.top[:most]):
        if token != entry.token and math.isfinite(logprob):
            table[str(token)] = {"logprob": logprob, "rank": place + 1, "decoded_token": text}
    return table


def _floored(logprob: float | None) -> float:
    return logprob if logprob is not None and logprob > FLOOR else FLOOR
