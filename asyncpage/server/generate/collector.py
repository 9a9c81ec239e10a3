"""Collects a call that is not streamed: the same words from the engine, kept until all choices have finished.

The exchange calls it as its consumer; the generate route asks for the answer at the end.

INVARIANT: an answer is made only of choices that finished.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from asyncpage.messages import Finish, LogprobEntry
from asyncpage.server.call import Call
from asyncpage.server.generate.best_of import best_choices
from asyncpage.server.generate.shape import Collected, Head, Shape
from asyncpage.server.generate.usage import total_usage
from asyncpage.server.json_pieces import json_pieces
from asyncpage.text.reply import PlainReader

LARGE = 1000
"""Tokens with log-probabilities from which on an answer is written in a thread: up to 100 ms of work."""


class Collector:
    """The consumer of one call whose answer is sent whole."""

    def __init__(self, call: Call, shape: Shape, head: Head) -> None:
        self._call = call
        self._shape = shape
        self._head = head
        n = call.sampling.n
        self._choices = [Collected(call.prompts[index // n]) for index in range(call.choices)]
        self._readers = [call.new_reader() for _ in range(call.choices)]
        self._is_plain = all(isinstance(reader, PlainReader) for reader in self._readers)

    def text(self, index: int, text: str, token_ids: Sequence[int], logprobs: Sequence[LogprobEntry] | None) -> None:
        choice = self._choices[index]
        choice.texts.append(text)
        if not self._is_plain:  # as it comes: the loop would stand still over a whole answer
            choice.parts += self._readers[index].feed(text)
        choice.token_ids.extend(token_ids)
        if logprobs is not None:
            choice.entries.extend(logprobs)

    def prompt_logprobs(self, index: int, entries: Sequence[LogprobEntry]) -> None:
        self._choices[index].prompt_entries.extend(entries)

    def finished(self, index: int, finish: Finish) -> None:
        choice, reader = self._choices[index], self._readers[index]
        if self._is_plain:
            choice.parts += reader.feed("".join(choice.texts))
        choice.parts += reader.end()
        choice.finish = finish

    async def answer(self) -> str:
        """The whole body, once every choice has finished. A large one is written while the loop goes on."""
        if sum(len(choice.entries) + len(choice.prompt_entries) for choice in self._choices) < LARGE:
            return json.dumps(self._body())
        return await asyncio.to_thread(lambda: "".join(json_pieces(self._body())))

    def _body(self) -> dict[str, Any]:
        shape = self._shape
        finishes = [choice.finish for choice in self._choices if choice.finish is not None]
        shown = self._call.shown
        choices = self._choices if shown is None else best_choices(self._choices, self._call.sampling.n, shown)
        return {
            **self._head.to_json(shape.answer_kind),
            "choices": [shape.choice(index, choice) for index, choice in enumerate(choices)],
            "usage": total_usage(finishes, self._call.sampling.n).to_json(),
            **shape.extras(choices),
        }
