"""Chat completions: deltas with a role first, messages when collected.

The chat route gives it to the generate route.

INVARIANT: the first chunk of every choice, and no other, carries the role; the first of every call of a tool, and no
other, its id and name; and the first of all, and no other, the prompt's ids where they were asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncpage.messages import Finish, LogprobEntry, Prompt
from asyncpage.server.call import Output
from asyncpage.server.generate.logprob_shape import chat_logprobs, prompt_logprobs
from asyncpage.server.generate.shape import Collected, prompt_ids
from asyncpage.server.identity import new_id
from asyncpage.text.reply import CallArguments, CallBegun, CallEnded, ContentPart, ReasoningPart, ReplyPart
from asyncpage.text.token_logprobs import TokenTable


class ChatShape:
    """The shape of one chat completion call."""

    chunk_kind = "chat.completion.chunk"
    answer_kind = "chat.completion"

    def __init__(self, output: Output, table: TokenTable) -> None:
        self._output = output
        self._table = table
        self._called: set[int] = set()  # choices in which a tool was called
        self._has_begun = False  # the chunk with what belongs to the whole answer has been made

    def opening(self, index: int, prompt: Prompt) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        choices = [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]
        if self._has_begun or not self._output.return_token_ids:
            return {"choices": choices}
        self._has_begun = True
        return {"choices": choices, "prompt_token_ids": prompt_ids(prompt)}

    def piece(
        self, index: int, part: ReplyPart | None, entries: Sequence[LogprobEntry], token_ids: Sequence[int] | None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "delta": self._delta(index, part),
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
            "finish_reason": self._reason(index, finish),
            "stop_reason": finish.stop_reason,
        }

    def choice(self, index: int, collected: Collected) -> dict[str, Any]:
        finish = collected.finish
        message = self._message(index, collected.parts)
        choice: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(collected.entries),
            "finish_reason": self._reason(index, finish) if finish else None,
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

    def _delta(self, index: int, part: ReplyPart | None) -> dict[str, Any]:
        match part:
            case ContentPart(text):
                return {"content": text}
            case ReasoningPart(text):
                return {"reasoning_content": text}
            case CallBegun(call, name):
                self._called.add(index)
                return {"tool_calls": [{"index": call, **_call(name, "")}]}
            case CallArguments(call, text):
                return {"tool_calls": [{"index": call, "function": {"arguments": text}}]}
            case CallEnded() | None:
                return {}

    def _message(self, index: int, parts: Sequence[ReplyPart]) -> dict[str, Any]:
        content, reasoning = [], []
        names: dict[int, str] = {}
        arguments: dict[int, list[str]] = {}
        for part in parts:
            match part:
                case ContentPart(text):
                    content.append(text)
                case ReasoningPart(text):
                    reasoning.append(text)
                case CallBegun(call, name):
                    names[call], arguments[call] = name, []
                case CallArguments(call, text):
                    arguments[call].append(text)
                case CallEnded():
                    pass
        message: dict[str, Any] = {"role": "assistant", "content": "".join(content), "refusal": None}
        if reasoning:
            message["reasoning_content"] = "".join(reasoning)
        if names:
            self._called.add(index)
            message["content"] = message["content"] or None
            message["tool_calls"] = [_call(name, "".join(arguments[call])) for call, name in names.items()]
        return message

    def _reason(self, index: int, finish: Finish) -> str:
        """An answer with a call that came to its own end waits for the tool."""
        return "tool_calls" if finish.reason == "stop" and index in self._called else finish.reason

    def _logprobs(self, entries: Sequence[LogprobEntry]) -> dict[str, Any] | None:
        most = self._output.logprobs
        return None if most is None else chat_logprobs(entries, most, self._table)


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": new_id("call_"), "type": "function", "function": {"name": name, "arguments": arguments}}
