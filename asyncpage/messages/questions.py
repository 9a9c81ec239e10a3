"""What a front end asks the KV manager about the prefix cache, and what it is told."""

from __future__ import annotations

from typing import Literal

from asyncpage.records import record


@record(frozen=True, slots=True)
class ResetCache:
    """Let nothing that was computed so far be found again; requests that run go on. Answered with the blocks freed."""


@record(frozen=True, slots=True)
class Why:
    """What a request found in the cache and why no more. `label`: its client-visible id, or its number.

    Answered with a mapping of plain values, None when it is not remembered.
    """

    label: str


Question = ResetCache | Why


@record(frozen=True, slots=True)
class Ask:
    """A question; its `Answer` with the same `token` goes to the front end."""

    token: int
    frontend: int
    question: Question


@record(frozen=True, slots=True)
class Follow:
    """A front end wants to hear of every `CacheEvents` from now on, or no longer."""

    frontend: int
    is_on: bool


@record(frozen=True, slots=True)
class Answer:
    """The answer to an `Ask`."""

    token: int
    value: object


@record(frozen=True, slots=True)
class CacheEvent:
    """A named block was stored or removed, or all were. `tokens`: its ids, int32 little-endian.

    `parent`: the name before it, empty for a first block. `medium`: where the block is or was.
    """

    kind: Literal["stored", "removed", "cleared"]
    name: bytes = b""
    parent: bytes = b""
    tokens: bytes = b""
    medium: Literal["gpu", "host", "disk"] = "gpu"
    block_size: int = 0


@record(frozen=True, slots=True)
class CacheEvents:
    """What has happened to the prefix cache since the last of these, in order."""

    events: tuple[CacheEvent, ...]
