"""Text completions: bare text, streamed and collected alike.

The completion route gives it to the generate route.

INVARIANT: with `echo` the logprobs begin with the prompt's entries, as the text begins with the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncpage.messages import Finish, LogprobEntry, Prompt
from asyncpage.server.call import Output
from asyncpage.server.generate.logprob_shape import CompletionLogprobs, prompt_logprobs
from asyncpage.server.generate.shape import Collected, prompt_ids
from asyncpage.text.reply import ContentPart, ReplyPart
from asyncpage.text.token_logprobs import TokenTable


class CompletionShape:
    """The shape of one text completion call."""

    chunk_kind = "text_completion"
    answer_kind = "text_completion"

    def __init__(self, output: Output, table: TokenTable) -> None:
        self._output = output
        self._table = table
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def opening(self, index: int, prompt: Prompt) -> dict[str, Any] | None:
        if not self._output.return_token_ids:
            return None
        choice = {"index": index, "text": "", "logprobs": None, "finish_reason": None}
        return {"choices": [{**choice, "prompt_token_ids": prompt_ids(prompt)}]}

    def piece(
        self, index: int, part: ReplyPart | None, entries: Sequence[LogprobEntry], token_ids: Sequence[int] | None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "text": part.text if isinstance(part, ContentPart) else "",
            "logprobs": self._take(index, entries) if entries else None,
            "finish_reason": None,
        }
        if token_ids is not None:
            choice["token_ids"] = list(token_ids)
        return choice

    def ending(self, index: int, finish: Finish) -> dict[str, Any]:
        return {
            "index": index,
            "text": "",
            "logprobs": None,
            "finish_reason": finish.reason,
            "stop_reason": finish.stop_reason,
        }

    def choice(self, index: int, collected: Collected) -> dict[str, Any]:
        output, finish = self._output, collected.finish
        entries = [*collected.prompt_entries, *collected.entries] if output.echo else collected.entries
        choice: dict[str, Any] = {
            "index": index,
            "text": "".join(collected.texts),
            "logprobs": self._take(index, entries),
            "finish_reason": finish.reason if finish else None,
            "stop_reason": finish.stop_reason if finish else None,
        }
        if output.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(collected.prompt_entries, output.prompt_logprobs, self._table)
        if output.return_token_ids:
            choice["token_ids"] = collected.token_ids
            choice["prompt_token_ids"] = prompt_ids(collected.prompt)
        return choice

    def extras(self, choices: Sequence[Collected]) -> dict[str, Any]:
        return {}

    def _take(self, index: int, entries: Sequence[LogprobEntry]) -> dict[str, Any] | None:
        most = self._output.logprobs
        if most is None:
            return None
        return self._logprobs.setdefault(index, CompletionLogprobs(most, self._table)).take(entries)
