"""Chat completions: deltas with a role first, messages when collected.

The chat route gives it to the generate route.

INVARIANT: the first chunk of every choice, and no other, carries the role.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncpage.messages import Finish, LogprobEntry
from asyncpage.server.call import Output
from asyncpage.server.logprob_shape import chat_logprobs, prompt_logprobs
from asyncpage.server.shape import Collected, prompt_ids
from asyncpage.text.token_logprobs import TokenTable


class ChatShape:
    """The shape of one chat completion call."""

    chunk_kind = "chat.completion.chunk"
    answer_kind = "chat.completion"

    def __init__(self, output: Output, table: TokenTable) -> None:
        self._output = output
        self._table = table

    def opening(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(
        self, index: int, text: str, entries: Sequence[LogprobEntry], token_ids: Sequence[int] | None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "delta": {"content": text},
            "logprobs": self._logprobs(entries) if entries else None,
            "finish_reason": None,
        }
        if token_ids is not None:
            choice["token_ids"] = list(token_ids)
        return choice

    def ending(self, index: int, finish: Finish) -> dict[str, Any]:
        return {
            "index": index,
            "delta": {},
            "logprobs": None,
            "finish_reason": finish.reason,
            "stop_reason": finish.stop_reason,
        }

    def choice(self, index: int, collected: Collected) -> dict[str, Any]:
        finish = collected.finish
        choice: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": "".join(collected.texts), "refusal": None},
            "logprobs": self._logprobs(collected.entries),
            "finish_reason": finish.reason if finish else None,
            "stop_reason": finish.stop_reason if finish else None,
        }
        if self._output.return_token_ids:
            choice["token_ids"] = collected.token_ids
        return choice

    def extras(self, choices: Sequence[Collected]) -> dict[str, Any]:
        output, first, extras = self._output, choices[0], dict[str, Any]()
        if output.prompt_logprobs is not None:
            extras["prompt_logprobs"] = prompt_logprobs(first.prompt_entries, output.prompt_logprobs, self._table)
        if output.return_token_ids:
            extras["prompt_token_ids"] = prompt_ids(first.prompt)
        return extras

    def _logprobs(self, entries: Sequence[LogprobEntry]) -> dict[str, Any] | None:
        most = self._output.logprobs
        return None if most is None else chat_logprobs(entries, most, self._table)
