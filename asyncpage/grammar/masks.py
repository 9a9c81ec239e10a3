"""Masks that were computed, the ones used least recently forgotten first.

Automata share one, so that all masks of an executor together take a bounded number of bytes.

INVARIANT: the masks that are kept take at most `most_bytes`, unless the newest alone takes more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from asyncpage.grammar.backend import Bits

MASK_BYTES = 64 << 20  # some ten thousand masks of a vocabulary of 50 thousand tokens


class MaskCache:
    """Masks by whatever names them."""

    def __init__(self, most_bytes: int = MASK_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._masks: OrderedDict[Hashable, Bits] = OrderedDict()

    def __len__(self) -> int:
        return len(self._masks)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._masks

    def get(self, key: Hashable) -> Bits | None:
        """The mask under this key, which is now the one used last."""
        mask = self._masks.get(key)
        if mask is not None:
            self._masks.move_to_end(key)
        return mask

    def put(self, key: Hashable, mask: Bits) -> None:
        """Keep a mask; others make room for it."""
        self._masks[key] = mask
        self._bytes += mask.nbytes
        while self._bytes > self._most_bytes and len(self._masks) > 1:
            _, oldest = self._masks.popitem(last=False)
            self._bytes -= oldest.nbytes
