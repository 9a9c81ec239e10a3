"""What a front end asks the KV manager about its blocks and the prefix cache, and what it is told."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asyncpage.messages.values import Int32, RequestId
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


@record(frozen=True, slots=True)
class Chart:
    """Where every block is. Answered with a `BlockChart`, which is drawn in slices: steps go on in between."""


@record(frozen=True, slots=True)
class LookAt:
    """What one block holds, and who holds it. Answered with a `BlockSight`; None for a number that is no block's."""

    block: int


Question = ResetCache | Why | Chart | LookAt


@record(frozen=True, slots=True, eq=False)
class BlockChart:
    """Every block of the pool in columns [blocks]; block 0 is never handed out.

    `owners`: a row that holds the block, -1 for none. `references`: how many hold it, 255 for more. `named`: whether
    a prompt may find it. A block without references is free: cached when it is named, else blank; one that is
    referenced and in no row leaves with a step in flight. `requests` [rows]: who lives in each row, 0 for nobody.
    """

    owners: Int32
    references: NDArray[np.uint8]
    named: NDArray[np.bool_]
    requests: NDArray[np.int64]


@record(frozen=True, slots=True)
class Holder:
    """A row that holds a block at place `index` of its table. `label`: the client-visible id, "" when not known."""

    row: int
    request: RequestId
    label: str
    group: int
    index: int


@record(frozen=True, slots=True)
class BlockSight:
    """One block. `name` is empty where it has none, `parent` for a first block.

    `tokens`: int32 little-endian, those known of what it holds; empty when none is. `chain`: the blocks before it, from
    the beginning of the prompt, 0 where one is gone.
    """

    block: int
    references: int
    name: bytes
    parent: bytes
    tokens: bytes
    chain: tuple[int, ...]
    holders: tuple[Holder, ...]


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
