"""Small integers packed into 32-bit words, and the map from groups of them to floats.

`gptq` and `awq` keep their weights so, each in its own order of bits and axes.

INVARIANT: a weight is (integer - zero point) * scale, computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

WORD_BITS = 32


def unpack(words: Tensor, bits: int, order: Sequence[int] | None = None) -> Tensor:
    """int32 words [..., W] as the integers in them: int32 [..., W * 32 / bits], the lowest bits first.

    `order[i]`: which place of its word comes i-th, where that is another.
    """
    places = range(WORD_BITS // bits) if order is None else order
    shifts = torch.tensor([place * bits for place in places], dtype=torch.int32)
    # An arithmetic shift drags the sign along; the mask takes it off.
    items = words.unsqueeze(-1).bitwise_right_shift(shifts).bitwise_and_((1 << bits) - 1)
    return items.flatten(-2)


def scale_groups(items_KN: Tensor, groups_K: Tensor, zeros_GN: Tensor, scales_GN: Tensor) -> Tensor:
    """float32 [K, N]: each row of integers less its group's zero points, times its group's scales."""
    return (items_KN - zeros_GN[groups_K]).float().mul_(scales_GN[groups_K])
