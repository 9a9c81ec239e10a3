"""The contract of a prefix index: which blocks already hold the beginning of a prompt.

The settlement asks an index (`prefix_chain`, `prefix_tree`) through the block tables; blocks are the pool's numbers,
one a layer group. An index keeps names and tokens, never reference counts: the pool says when a block is given up.

INVARIANT: a match never names a block whose tokens, or whose predecessors' tokens, differ from the prompt's, whatever
the digests say.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, Protocol

from asyncpage.messages import LayerGroup, Prefix
from asyncpage.records import record

Branch = Any
"""Where a sequence of full blocks ends; made and read by one index only."""


@record(frozen=True, slots=True)
class Match:
    """The longest beginning of a prefix that an index holds.

    `blocks`: the full ones, one tuple a group, equally long; 0 stands behind a group's window. `donors`: one block a
    group whose first `tail` slots hold the tokens that follow, () for none. `branch`: where the full blocks end.
    `seen`: what the index that made it need not look at again to explain it.
    """

    blocks: tuple[tuple[int, ...], ...]
    branch: Branch
    donors: tuple[int, ...] = ()
    tail: int = 0
    seen: Any = None


@record(frozen=True, slots=True)
class Divergence:
    """Why a match ended where it did.

    `matched`: tokens, a tail included. `position`: the first token that differs, -1 when none does (the cache, or the
    prompt, ends there). `expected`, `found`: the prompt's and the cache's token there, -1 for none. `elsewhere`:
    tokens of the prompt in whole blocks that another root (salt, adapter) holds when those are more, else 0.
    """

    matched: int
    position: int
    expected: int
    found: int
    elsewhere: int


@record(frozen=True, slots=True)
class Contents:
    """What a held block holds. `name` is empty for a tail, `parent` for a first block.

    `chain`: the blocks of the same group before it, from the root on, 0 where one is gone.
    """

    name: bytes
    parent: bytes
    tokens: bytes
    chain: tuple[int, ...]


class Listener(Protocol):
    """Hears what an index stores and removes. `parent`: the name before, the digest of the root for a first block."""

    def stored(self, name: bytes, parent: bytes, tokens: bytes) -> None: ...

    def removed(self, name: bytes) -> None: ...

    def cleared(self) -> None: ...


class PrefixIndex(Protocol):
    """Finds, keeps and forgets named blocks. `tells_stored`: else the listener hears only of what is removed."""

    listener: Listener | None
    tells_stored: bool

    def __init__(self, groups: Sequence[LayerGroup], block_size: int) -> None: ...

    def __len__(self) -> int:
        """Blocks that it holds."""
        ...

    def match(self, prefix: Prefix, most_tokens: int) -> Match:
        """The longest beginning that every group holds, at most `most_tokens` tokens with the tail."""
        ...

    def begin(self, root: bytes) -> Branch:
        """The branch at the beginning of a root."""
        ...

    def publish(self, branch: Branch, name: bytes, tokens: bytes, blocks: Sequence[int]) -> Branch | None:
        """Hold one full block behind `branch`; the branch behind it.

        `blocks`: one a group, 0 where the row has none any more. An equal block that is held already stays the one.
        None: nothing can be held behind this any more, because `branch` was forgotten or the name is another's.
        """
        ...

    def publish_tail(self, branch: Branch, tokens: bytes, blocks: Sequence[int]) -> None:
        """Hold a block that is full only up to `tokens`: it has no name, and serves as a donor."""
        ...

    def holds(self, block: int) -> bool:
        """Whether this block may be shared, so that its contents must not change."""
        ...

    def contents(self, block: int) -> Contents | None:
        """What this block holds; None when it is not held."""
        ...

    def held(self, names: Sequence[bytes]) -> Set[bytes]:
        """Those of which a block is held in any group."""
        ...

    def forget(self, block: int) -> None:
        """The block is about to hold something else. The pool gives up the end of a branch before what it hangs on."""
        ...

    def clear(self) -> None:
        """Forget every block."""
        ...

    def explain(self, prefix: Prefix, match: Match) -> Divergence:
        """Where and why a match of all of `prefix` ends. `match`: of a part of it, since when nothing has changed."""
        ...
