"""An answer as a client sees it: whole or streamed, and the questions that checks ask of either.

`client` makes them.

INVARIANT: JSON was read by a strict parser; a stream's events are in the order of arrival.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def strict_json(text: str | bytes) -> Any:
    """Errors: `ValueError` for NaN and Infinity too, which are no JSON."""

    def refuse(literal: str) -> Any:
        raise ValueError(f"{literal} is not JSON")

    return json.loads(text, parse_constant=refuse)


@dataclass(slots=True)
class Answer:
    """`events`: of a stream, the data of each event but the last "[DONE]". `seconds` from sending to the end.

    `first_s`: from sending to a stream's first bytes. `arrivals`: when each of its pieces came, by the monotonic clock.
    """

    path: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float
    is_stream: bool = False
    events: list[Any] = field(default_factory=list)
    done: int = 0
    after_done: int = 0
    first_s: float | None = None
    arrivals: list[float] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return strict_json(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of a refusal, or of the event that ended a stream."""
        if self.is_stream:
            return next(event["error"] for event in self.events if "error" in event)
        found: dict[str, Any] = self.json["error"]
        return found

    @property
    def failed(self) -> bool:
        return self.status != 200 or (self.is_stream and any("error" in event for event in self.events))

    def pieces(self, index: int = 0) -> list[str]:
        """The texts of a stream's deltas for one choice, or the one text of a whole answer; None counts as empty."""
        if not self.is_stream:
            choice = self.json["choices"][index]
            return [(choice["message"]["content"] if "message" in choice else choice["text"]) or ""]
        found = []
        for choice in self.chunks(index):
            found.append((choice["delta"].get("content") if "delta" in choice else choice["text"]) or "")
        return found

    def text(self, index: int = 0) -> str:
        assert not self.failed, self.body[:500]
        return "".join(self.pieces(index))

    def chunks(self, index: int = 0) -> list[dict[str, Any]]:
        """One choice's part of each chunk that has one."""
        return [choice for event in self.events for choice in event.get("choices", ()) if choice["index"] == index]

    def finish(self, index: int = 0) -> str | None:
        if not self.is_stream:
            found: str | None = self.json["choices"][index]["finish_reason"]
            return found
        reasons = [choice["finish_reason"] for choice in self.chunks(index) if choice["finish_reason"] is not None]
        assert len(reasons) == 1, reasons
        return reasons[0]

    def stop_reason(self, index: int = 0) -> Any:
        choices = self.chunks(index) if self.is_stream else [self.json["choices"][index]]
        return choices[-1].get("stop_reason")

    def token_ids(self, index: int = 0) -> list[int]:
        """The answer's tokens, of a request with `return_token_ids`."""
        if not self.is_stream:
            return list(self.json["choices"][index]["token_ids"])
        return [token for choice in self.chunks(index) for token in choice.get("token_ids") or ()]

    def usage(self) -> dict[str, Any]:
        if not self.is_stream:
            found: dict[str, Any] = self.json["usage"]
            return found
        return next(event["usage"] for event in reversed(self.events) if event.get("usage"))

    def cached_tokens(self) -> int:
        return int(self.usage()["prompt_tokens_details"]["cached_tokens"])

    def logprobs(self, index: int = 0) -> dict[str, list[Any]]:
        """The log-probability lists of one choice, a stream's joined."""
        if not self.is_stream:
            found: dict[str, list[Any]] = self.json["choices"][index]["logprobs"]
            return found
        joined: dict[str, list[Any]] = {}
        for choice in self.chunks(index):
            for key, value in (choice.get("logprobs") or {}).items():
                joined.setdefault(key, []).extend(value or ())
        return joined


class EventReader:
    """Server-sent events from bytes that come in any pieces."""

    def __init__(self) -> None:
        self._rest = b""
        self.data: list[str] = []

    def feed(self, chunk: bytes) -> None:
        *events, self._rest = (self._rest + chunk).split(b"\n\n")
        for event in events:
            lines = event.decode("utf-8").split("\n")
            found = [line[5:].removeprefix(" ") for line in lines if line.startswith("data:")]
            if found:
                self.data.append("\n".join(found))

    def fill(self, answer: Answer) -> None:
        """Bring what has been read into the answer. Errors: `ValueError` for an event that is no JSON."""
        assert not self._rest.strip(), f"the stream ends inside an event: {self._rest[:200]!r}"
        for data in self.data:
            if data == "[DONE]":
                answer.done += 1
            elif answer.done:
                answer.after_done += 1
            else:
                answer.events.append(strict_json(data))
