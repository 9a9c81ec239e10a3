"""What the KV manager is sent."""

from __future__ import annotations

from dataclasses import dataclass

from asyncpage.messages.values import Int32, RequestId


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting request in policy order.

    `known`: tokens it has (prompt and accepted output) and may compute. `names`: the hash chain of its full blocks
    as far as known, which starts at `root`.
    `fork_row`: the row of the sibling whose blocks it may share (copy on write), -1 for none.
    `read_cache`, `feed_cache`: whether it may match the prefix index, and whether its blocks are published.
    """

    request: RequestId
    known: int
    root: bytes
    names: tuple[bytes, ...]
    fork_row: int = -1
    read_cache: bool = True
    feed_cache: bool = True


@dataclass(frozen=True, slots=True)
class FilledBlocks:
    """Blocks `first` .. `last` (exclusive) of a running row hold computed, accepted tokens and may be named.

    `tokens`: ids of those blocks beyond the names that came with the candidate, int32 little-endian; the KV manager
    extends the row's chain with them.
    """

    row: int
    first: int
    last: int
    tokens: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Reserve:
    """Settle step `number`: the running pass over `rows`, then the waiting pass over `candidates`.

    `rows`, `computed`, `wants`: [R] in policy order, wants already clipped by context and long-prefill share.
    `victims`: [R] the same rows, first to be preempted first. `returned`: every step up to this number is back.
    `released`: rows that ended since the last settlement. `filled`: blocks that became full.
    `free_rows`: rows for the admitted, in the order to use them.
    """

    number: int
    returned: int
    rows: Int32
    computed: Int32
    wants: Int32
    victims: Int32
    candidates: tuple[Candidate, ...]
    budget_tokens: int
    free_rows: tuple[int, ...]
    released: tuple[int, ...] = ()
    filled: tuple[FilledBlocks, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewind:
    """No step is in flight any more and no row exists; `forget` says that the blocks' contents are gone too."""

    forget: bool
