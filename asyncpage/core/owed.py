"""Blocks that rows will still take for what they were let in for: promised to them, and to be given to nobody else.

The settlement keeps it beside the tables, which say what each row holds already.

INVARIANT: a row owes nothing once it holds what it was let in for, or is empty.
"""

from __future__ import annotations

from asyncpage.messages import Int32


class Owed:
    """Table entries, by row."""

    def __init__(self) -> None:
        self._entries: dict[int, int] = {}

    def admitted(self, row: int, entries: int, held: int) -> None:
        """A row was let in for what needs `entries`, and holds `held` of them."""
        if entries > held:
            self._entries[row] = entries

    def left(self, row: int) -> None:
        """The row is empty."""
        self._entries.pop(row, None)

    def clear(self) -> None:
        """Every row is."""
        self._entries.clear()

    def entries(self, held: Int32) -> int:
        """How many are still to be taken, with `held` [rows] entries in use."""
        if not self._entries:
            return 0
        missing = {row: entries - int(held[row]) for row, entries in self._entries.items()}
        self._entries = {row: entries for row, entries in self._entries.items() if missing[row] > 0}
        return sum(missing[row] for row in self._entries)
