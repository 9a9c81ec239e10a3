"""Rows in the order of a policy's keys.

INVARIANT: a row that lives is in the order once, behind every smaller key.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

import numpy as np

from asyncpage.core.policy import Key
from asyncpage.messages import Int32


class RowOrder:
    """Keys are unique; a row keeps its key as long as it lives."""

    def __init__(self, rows: int) -> None:
        self._key_of: list[Key] = [()] * rows
        self._keys: list[Key] = []
        self._rows = array("i")  # in the order of `_keys`; numpy copies it ten times as fast as a list
        self._column: Int32 | None = None

    def add(self, row: int, key: Key) -> None:
        """A row begins to live."""
        self._key_of[row] = key
        place = bisect_left(self._keys, key)
        self._keys.insert(place, key)
        self._rows.insert(place, row)
        self._column = None

    def remove(self, row: int) -> None:
        """It ends."""
        place = bisect_left(self._keys, self._key_of[row])
        del self._keys[place], self._rows[place]
        self._column = None

    def column(self) -> Int32:
        """The rows that live, in order; the same array until one comes or goes."""
        if self._column is None:
            self._column = np.array(self._rows, dtype=np.int32)
            self._column.flags.writeable = False
        return self._column
