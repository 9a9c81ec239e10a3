"""Token ids in a body: a list of numbers to the column that the engine takes.

The readers of every route that takes ids call it.

INVARIANT: every id in a column is inside the model's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncpage.server.failure import invalid
from asyncpage.server.fields import shown, to_integer


def read_token_ids(raw: Sequence[Any], path: str, vocab_size: int) -> bytes:
    """`raw` as int32, little-endian. Errors: 400 whose `param` is the field that `path` begins with."""
    if set(map(type, raw)) != {int}:  # rare: whole floats, or something wrong that the slow way names
        raw = [to_integer(item, f"{path}.{index}") for index, item in enumerate(raw)]
    low, high = min(raw, default=0), max(raw, default=0)
    if low < 0 or high >= vocab_size:
        bad = low if low < 0 else high
        raise invalid(
            f"{path}: token id {shown(bad)} is outside the vocabulary of {vocab_size}", param=path.partition(".")[0]
        )
    return np.asarray(raw, dtype="<i4").tobytes()
