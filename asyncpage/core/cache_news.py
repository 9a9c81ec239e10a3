"""What an index and the tiers store and remove, passed on to those who want to know.

The listener of the prefix index, and of the tiers while somebody follows. Obituaries always hear of removals; of what
is stored only a watch does, under a policy that asks for hits, and front ends that follow, and else nobody is told.

INVARIANT: whoever follows hears once of each name that a medium stores before it hears that it was removed from there,
or that all were.
"""

from __future__ import annotations

from typing import Literal

from asyncpage.core.block_tables import BlockTables
from asyncpage.core.obituaries import Obituaries
from asyncpage.core.watch import HitWatch
from asyncpage.messages import NO_PARENT, BlockLabel, CacheEvent


class CacheNews:
    """Implements `Listener` over the index of `tables`, and `TierListener` over their tier."""

    def __init__(self, tables: BlockTables, obituaries: Obituaries, watch: HitWatch | None) -> None:
        self._tables = tables
        self._obituaries = obituaries
        self._watch = watch
        self._events: list[CacheEvent] | None = None
        tables.index.listener = self
        tables.index.tells_stored = watch is not None

    def gather(self, is_on: bool) -> None:
        """Gather events from now on, or no longer."""
        self._events = [] if is_on else None
        self._tables.index.tells_stored = is_on or self._watch is not None
        if self._tables.tier is not None:
            self._tables.tier.tell(self if is_on else None)

    def events(self) -> tuple[CacheEvent, ...]:
        """What was gathered since the last time."""
        if not self._events:
            return ()
        events = tuple(self._events)
        self._events.clear()
        return events

    def stored(self, name: bytes, parent: bytes, tokens: bytes) -> None:
        if self._watch is not None:
            self._watch.stored(name, parent, tokens)
        if self._events is not None:
            known = parent if self._tables.index.held((parent,)) else b""  # a root is nobody's name outside
            self._events.append(CacheEvent("stored", name, known, tokens, block_size=self._tables.block_size))

    def removed(self, name: bytes) -> None:
        self._obituaries.removed(name, self._tables.step, self._tables.cause)
        if self._watch is not None:
            self._watch.removed(name)
        if self._events is not None:
            self._events.append(CacheEvent("removed", name, block_size=self._tables.block_size))

    def cleared(self) -> None:
        self._obituaries.cleared()
        if self._watch is not None:
            self._watch.cleared()
        if self._events is not None:
            self._events.append(CacheEvent("cleared"))

    def arrived(self, label: BlockLabel, medium: Literal["host", "disk"]) -> None:
        if self._events is not None and label.group == 0:  # a name is told once, whatever groups there are
            parent = b"" if label.parent == NO_PARENT else label.parent
            size = self._tables.block_size
            self._events.append(CacheEvent("stored", label.name, parent, label.tokens, medium, size))

    def left(self, label: BlockLabel, medium: Literal["host", "disk"]) -> None:
        if self._events is not None and label.group == 0:
            self._events.append(CacheEvent("removed", label.name, medium=medium, block_size=self._tables.block_size))
