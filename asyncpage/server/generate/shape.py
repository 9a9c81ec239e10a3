"""The shape of an answer: what the chat and the text completion routes put around the same generated tokens.

The chunk writer streams through a shape, the collected answer is built by one; each route brings its own.

INVARIANT: a streamed answer's pieces, joined, say what the collected answer says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from asyncpage.messages import Finish, LogprobEntry, Prompt, TokenPrompt
from asyncpage.text.reply import ReplyPart


@dataclass(frozen=True, slots=True)
class Head:
    """What every chunk of an answer has in common. `fingerprint`: of all that computes it."""

    id: str
    created: int
    model: str
    fingerprint: str | None = None

    def to_json(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


@dataclass(slots=True)
class Collected:
    """Everything that one choice has said, in order. `parts`: what its text means, once it has finished."""

    prompt: Prompt
    texts: list[str] = field(default_factory=list)
    parts: list[ReplyPart] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    entries: list[LogprobEntry] = field(default_factory=list)
    prompt_entries: list[LogprobEntry] = field(default_factory=list)
    finish: Finish | None = None


def prompt_ids(prompt: Prompt) -> list[int]:
    """The ids of a prompt whose call shows them: the route has made it one of ids."""
    assert isinstance(prompt, TokenPrompt)
    ids: list[int] = np.frombuffer(prompt.tokens, dtype="<i4").tolist()
    return ids


class Shape(Protocol):
    """One shape object serves one call: it may keep what the next piece of a choice depends on."""

    chunk_kind: str
    answer_kind: str

    def opening(self, index: int, prompt: Prompt) -> dict[str, Any] | None:
        """What a chunk that comes before a choice's first piece has, `choices` and all; None if there is no such chunk.

        `prompt`: the choice's.
        """
        ...

    def piece(
        self, index: int, part: ReplyPart | None, entries: Sequence[LogprobEntry], token_ids: Sequence[int] | None
    ) -> dict[str, Any]:
        """The choice of a chunk with more of the answer, None where the new tokens let out nothing yet.

        `entries`, `token_ids`: of the new tokens, where they were asked.
        """
        ...

    def ending(self, index: int, finish: Finish) -> dict[str, Any]:
        """The choice of a choice's last chunk."""
        ...

    def choice(self, index: int, collected: Collected) -> dict[str, Any]:
        """A choice of the collected answer."""
        ...

    def extras(self, choices: Sequence[Collected]) -> dict[str, Any]:
        """What the collected answer has beside its choices and usage."""
        ...
