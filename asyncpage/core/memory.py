"""What a settlement decides over: the tables, the rules, promises in flight, and the memory of why.

The KV manager owns one and hands it to `settlement`.

INVARIANT: a promise of a block is kept or broken in the settlement in which it is published or its row ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from asyncpage.core.block_tables import BlockTables
from asyncpage.core.explanation import Explanations
from asyncpage.core.obituaries import Obituaries
from asyncpage.core.owed import Owed
from asyncpage.core.sharing import Sharing
from asyncpage.messages import EMPTY, Int32, Reserve


@dataclass(frozen=True, slots=True)
class Rules:
    """What stays the same from step to step. `long_prefill_tokens` 0 sets no limit.

    `whole_prompt`: a request is let in only when blocks for everything it knows are there, not just for its first
    chunk: half-admitted prompts would preempt one another. `shares_in_flight`: candidates wait for promised blocks.
    """

    chunked_prefill: bool = True
    long_prefill_tokens: int = 0
    watermark_blocks: int = 0
    whole_prompt: bool = True
    shares_in_flight: bool = True


class SameBatch:
    """Rows that run and their counts: the very arrays of the step before while they stay equal.

    Whoever comes after compares identities, and leaves out what has not changed.
    """

    __slots__ = ("_column", "_counts", "_key", "_rows")

    def __init__(self) -> None:
        self._key = b""
        self._column: Int32 | None = None
        self._rows, self._counts = EMPTY, EMPTY

    def of(self, counts: Int32) -> tuple[Int32, Int32]:
        """The rows whose count in the column is not 0, and those counts."""
        if counts is self._column:
            return self._rows, self._counts
        self._column = None if counts.flags.writeable else counts
        key = counts.tobytes()
        if key != self._key:
            self._key = key
            self._rows = np.flatnonzero(counts).astype(np.int32)
            self._counts = counts[self._rows]
            self._rows.flags.writeable = self._counts.flags.writeable = False
        return self._rows, self._counts


@dataclass(slots=True)
class Memory:
    """Everything that a settlement decides over, and changes."""

    tables: BlockTables
    rules: Rules = field(default_factory=Rules)
    sharing: Sharing = field(default_factory=Sharing)
    owed: Owed = field(default_factory=Owed)
    batch: SameBatch = field(default_factory=SameBatch)
    obituaries: Obituaries = field(default_factory=Obituaries)
    explanations: Explanations = field(init=False)

    def __post_init__(self) -> None:
        self.explanations = Explanations(self.obituaries, self.tables.block_size)

    def publish(self, reserve: Reserve) -> None:
        """Name the blocks that have filled, and keep the promises that were made of them."""
        if len(reserve.filled):
            told, sharing = self.tables.publish(reserve.filled, reserve.filled_tokens), self.sharing
            if sharing.is_promised:
                for row, name in told:
                    if name:
                        sharing.kept(row, name)
                    else:
                        sharing.broken(row)

    def forget_prefixes(self) -> int:
        """Nothing that was computed so far is found again, so nobody need wait for it. Returns free blocks emptied."""
        self.sharing.clear()
        return self.tables.forget_prefixes()

    def left(self, row: int) -> None:
        """A row's life has ended: nobody need wait for it, and it takes no more."""
        self.sharing.broken(row)
        self.owed.left(row)

    def rewind(self, *, forget: bool) -> None:
        """No row exists and no step is in flight any more; with `forget` no block holds anything either."""
        self.tables.reset(forget=forget)
        self.owed.clear()
        self.sharing.clear()
        self.sharing.woken()  # the scheduler has called everybody back itself
