"""Log-probabilities in the three shapes that clients know: chat, text completion, and the prompt's own list.

The answer shapes call these with the engine's entries.

INVARIANT: every number is finite JSON; alternatives that cannot be drawn (-inf) are left out, and a chosen token's
is never below `FLOOR`.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from asyncpage.messages import LogprobEntry
from asyncpage.text.token_logprobs import TokenTable, alternatives

FLOOR = -9999.0
"""What the OpenAI API shows for a token whose probability is next to nothing."""


def chat_logprobs(entries: Iterable[LogprobEntry], most: int, table: TokenTable) -> dict[str, Any]:
    """The `logprobs` of a chat choice: one entry a token, with at most `most` alternatives."""
    content = []
    for entry in entries:
        top = [_chat_token(table, id, value) for _, id, value in alternatives(entry, most)]
        content.append({**_chat_token(table, entry[0], _floored(entry[1])), "top_logprobs": top})
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The `logprobs` of one text completion choice, in one piece or streamed in several.

    `text_offset` counts characters of the choice's text; a token that ends inside a character starts where that
    character does.
    """

    def __init__(self, most: int, table: TokenTable) -> None:
        self._most = most
        self._table = table
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, entries: Sequence[LogprobEntry]) -> dict[str, Any]:
        """The next tokens' entries. The prompt's first token has neither logprob nor alternatives."""
        tokens, offsets, chosen, tops = [], [], [], []
        for entry in entries:
            id, logprob = entry[0], entry[1]
            tokens.append(self._table.token_text(id))
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._table.token_bytes(id)))
            chosen.append(None if logprob is None else _floored(logprob))
            tops.append(None if logprob is None else self._alternatives(entry))
        return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": offsets}

    def _alternatives(self, entry: LogprobEntry) -> dict[str, float]:
        """By text, the chosen token always among them and with the very same number.

        Different tokens can have one text (pieces of a character, for one): a later one is shown by its id.
        """
        token = entry[0]
        table = {self._table.token_text(token): _floored(entry[1])}
        for _, id, value in alternatives(entry, self._most):
            if id != token:
                text = self._table.token_text(id)
                table[text if text not in table else f"token_id:{id}"] = value
        return table


def prompt_logprobs(entries: Iterable[LogprobEntry], most: int, table: TokenTable) -> list[dict[str, Any] | None]:
    """The `prompt_logprobs` extension: for each prompt token its own entry and `most` alternatives, by token id."""
    return [None if entry[1] is None else _by_id(entry, most, table) for entry in entries]


def _by_id(entry: LogprobEntry, most: int, table: TokenTable) -> dict[str, Any]:
    token, logprob, rank, *_ = entry
    shown = {str(token): {"logprob": _floored(logprob), "rank": rank, "decoded_token": table.token_text(token)}}
    for place, id, value in alternatives(entry, most):
        if id != token:
            shown[str(id)] = {"logprob": value, "rank": place, "decoded_token": table.token_text(id)}
    return shown


def _chat_token(table: TokenTable, id: int, logprob: float) -> dict[str, Any]:
    return {"token": table.token_text(id), "logprob": logprob, "bytes": list(table.token_bytes(id))}


def _floored(logprob: float | None) -> float:
    return logprob if logprob is not None and logprob > FLOOR else FLOOR
