"""What the KV manager is sent."""

from __future__ import annotations

from dataclasses import field

from asyncpage.messages.archive import BlockLabel
from asyncpage.messages.values import EMPTY, EMPTY_PAIRS, Int32, Prefix, RequestId
from asyncpage.records import record


@record(frozen=True, slots=True)
class Candidate:
    """A waiting request in policy order.

    `known`: tokens it has (prompt and accepted output) and may compute; `prefix` has all of them.
    `fork_row`: the row of the sibling whose blocks it may share (copy on write), -1 for none.
    `read_cache`, `feed_cache`: whether it may match the prefix index, and whether its blocks are published.
    `label`: the client-visible id, for explanations.
    """

    request: RequestId
    known: int
    prefix: Prefix
    fork_row: int = -1
    read_cache: bool = True
    feed_cache: bool = True
    label: str = ""


@record(frozen=True, slots=True)
class Released:
    """A row's request is over. `tail`: what it has computed and got behind its last full block, int32 little-endian."""

    row: int
    tail: bytes = b""


@record(frozen=True, slots=True, eq=False)
class Reserve:
    """Settle step `number`: the running pass over the rows, then the waiting pass over `candidates`.

    `order` [R]: rows that live, in policy order. `computed`, `wants` [rows]: columns over all rows, wants 0 where
    nothing is to be computed, already clipped by context and long-prefill share; `tokens`: their sum. `victims` [R]:
    the rows of `order`, first to be preempted first, empty where blocks cannot run out. `returned`: every step up to
    this number is back. `filled` [F, 2]: row and index of blocks that hold computed, accepted tokens only from now on,
    a row's in order; `filled_tokens` [F, block_size]. `free_rows`: rows for the admitted, in the order to use them.
    `equal_steps`: how many steps, this one included, could be alike, a token for each row that wants one.
    `drafts` [rows]: how many of `wants` are drafts, which nobody makes room for; empty when none are. `most_behind`:
    tokens that a row may turn out to be behind `computed` when the steps in flight are back.
    """

    number: int
    returned: int
    order: Int32
    computed: Int32
    wants: Int32
    tokens: int
    victims: Int32
    candidates: tuple[Candidate, ...]
    budget_tokens: int
    free_rows: tuple[int, ...]
    released: tuple[Released, ...] = ()
    filled: Int32 = field(default_factory=lambda: EMPTY_PAIRS)
    filled_tokens: Int32 = field(default_factory=lambda: EMPTY_PAIRS)
    equal_steps: int = 1
    drafts: Int32 = field(default_factory=lambda: EMPTY)
    most_behind: int = 0


@record(frozen=True, slots=True)
class Watch:
    """The policy wants to know how much of a waiting request is cached: tell changes in `Granted.hits`."""

    request: RequestId
    prefix: Prefix


@record(frozen=True, slots=True)
class Unwatch:
    """The request is over and had no row: it is neither watched nor parked any more."""

    request: RequestId


@record(frozen=True, slots=True)
class Rewind:
    """No step is in flight any more and no row exists; `forget` says that the blocks' contents are gone too."""

    forget: bool


@record(frozen=True, slots=True)
class Shelved:
    """The archive has looked into its folder: blocks of this model that lie there, the longest unused first."""

    labels: tuple[BlockLabel, ...]


@record(frozen=True, slots=True)
class Stored:
    """The archive is done with the slot of a `Store`; `removed`: keys of blocks whose files had to make room."""

    slot: int
    is_stored: bool
    removed: tuple[bytes, ...] = ()


@record(frozen=True, slots=True)
class Fetched:
    """The archive has read a file into the slot of a `Fetch`, or has not: then the block is not there any more."""

    slot: int
    is_there: bool
