"""Masks are kept up to a number of bytes, and those used last the longest."""

from __future__ import annotations

import numpy as np

from asyncpage.grammar.masks import MaskCache


def test_the_masks_used_longest_ago_make_room() -> None:
    cache = MaskCache(most_bytes=20)
    for name in "ab":
        cache.put(name, np.full(8, ord(name), dtype=np.uint8))
    assert cache.get("a") is not None
    cache.put("c", np.zeros(8, dtype=np.uint8))
    assert ["a" in cache, "b" in cache, "c" in cache] == [True, False, True]
    assert cache.get("b") is None


def test_one_mask_is_kept_however_large() -> None:
    cache = MaskCache(most_bytes=4)
    cache.put("a", np.zeros(8, dtype=np.uint8))
    cache.put("b", np.zeros(8, dtype=np.uint8))
    assert "b" in cache
    assert len(cache) == 1
