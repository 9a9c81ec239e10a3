"""What an index stores and removes, passed on to those who want to know.

The listener of the prefix index. Obituaries always hear of removals, a watch only under a policy that asks for hits,
and events are gathered only while a front end follows them.

INVARIANT: whoever follows hears of each stored name once before it hears that it was removed, or that all were.
"""

from __future__ import annotations

from asyncpage.core.block_tables import BlockTables
from asyncpage.core.obituaries import Obituaries
from asyncpage.core.watch import HitWatch
from asyncpage.messages import CacheEvent


class CacheNews:
    """Implements `Listener` over the index of `tables`."""

    def __init__(self, tables: BlockTables, obituaries: Obituaries, watch: HitWatch | None) -> None:
        self._tables = tables
        self._obituaries = obituaries
        self._watch = watch
        self._events: list[CacheEvent] | None = None
        tables.index.listener = self

    def gather(self, is_on: bool) -> None:
        """Gather events from now on, or no longer."""
        self._events = [] if is_on else None

    def events(self) -> tuple[CacheEvent, ...]:
        """What was gathered since the last time."""
        if not self._events:
            return ()
        events = tuple(self._events)
        self._events.clear()
        return events

    def stored(self, name: bytes, parent: bytes, tokens: bytes) -> None:
        self._obituaries.stored(name)
        self._obituaries.stored(name)
        if self._watch is not None:
            self._watch.stored(name, parent, tokens)
        if self._events is not None:
            known = parent if self._obituaries.holds(parent) else b""  # a root is nobody's name outside
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
