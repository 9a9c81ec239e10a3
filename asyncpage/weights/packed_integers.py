"""Small integers packed into 32-bit words, and the map from groups of them to floats.

`gptq` and `awq` keep their weights so, each in its own order of bits and axes.

INVARIANT: a weight is (integer - zero point) * scale, computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

WORD_BITS = 32


def unpack(words: Tensor, bits: int, *, axis: int = 1, order: Sequence[int] | None = None) -> Tensor:
    """An int32 matrix of words as the integers in them, that many more along `axis`; the lowest bits come first.

    `order[i]`: which place of its word comes i-th, where that is another.
    """
    places = range(WORD_BITS // bits) if order is None else order
    shifts = torch.tensor([place * bits for place in places], dtype=torch.int32)
    # Beside the axis, not behind the last one: what is next to one another in memory stays so. An arithmetic shift
    # drags the sign along; the mask takes it off.
    items = words.unsqueeze(axis + 1).bitwise_right_shift(shifts if axis == 1 else shifts.unsqueeze(1))
    return items.bitwise_and_((1 << bits) - 1).flatten(axis, axis + 1)


def scale_groups(items_KN: Tensor, groups_K: Tensor, zeros_GN: Tensor, scales_GN: Tensor) -> Tensor:
    """float32 [K, N]: each row of integers less its group's zero points, times its group's scales."""
    return (items_KN - zeros_GN[groups_K]).float().mul_(scales_GN[groups_K])
