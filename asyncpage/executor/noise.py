"""Exponential noise without state: a number for every (seed, number of the output token, vocabulary index).

The sampler asks for it; it asks nobody. A draw is a race: token i arrives after E_i / p_i, where E_i is exponential,
and the first one wins, which happens with probability p_i. Because E_i is a hash of what names it, and not the next
number of a shared generator, a token is the same whatever ran beside it or before it.

The hash: a 64-bit key from (seed, number) by two rounds of the splitmix64 finaliser (Steele, Lea, Flood 2014); then for
each vocabulary index a tabulated 32-bit mix, xored with one half of the key, and the multiply-xorshift rounds of
Wellons' lowbias32 with the other half added between. 31 bits are kept: exact in an int32 and, at its small end (where
races are decided), exact in a float32 as well.

INVARIANT: `bits` depends on its arguments alone, never on the shape or the place of a row in a batch.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

UInt64 = NDArray[np.uint64]
Float64 = NDArray[np.float64]

HALF = 0.5
SCALE = 2.0**-31

_MASK64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB
_LOW_A = 0x7FEB352D
_LOW_B = 0x846CA68B - 2**32  # as the int32 with the same bits


def stream_of(seed: int) -> int:
    """The 64-bit stream of a request: any integer seed, well spread."""
    z = (seed + _GOLDEN) & _MASK64
    z = ((z ^ (z >> 30)) * _MIX_A) & _MASK64
    z = ((z ^ (z >> 27)) * _MIX_B) & _MASK64
    return z ^ (z >> 31)


def keys(streams: UInt64, numbers: NDArray[np.int64]) -> NDArray[np.int32]:
    """[R, 2] int32: the two key halves of output token `numbers` [R] of each stream [R]."""
    z = streams + numbers.astype(np.uint64) * np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_A)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_B)
    z ^= z >> np.uint64(31)
    return np.asarray(z.view(np.int32).reshape(-1, 2))


def vocabulary_table(vocab_size: int, device: torch.device | None = None) -> torch.Tensor:
    """[V] int32: the tabulated first mix of every vocabulary index, for `bits`."""
    x = np.arange(1, vocab_size + 1, dtype=np.uint32)
    for shift, factor in ((16, _LOW_A), (15, _LOW_B & 0xFFFFFFFF)):
        x ^= x >> np.uint32(shift)
        x *= np.uint32(factor)
    x ^= x >> np.uint32(16)
    return torch.from_numpy(x.view(np.int32)).to(device)


def bits(
    table: torch.Tensor, keys_R2: torch.Tensor, out: torch.Tensor | None = None, scratch: torch.Tensor | None = None
) -> torch.Tensor:
    """[R, N] int32 in [0, 2**31): the race's bits for every entry of `table` ([N] or [R, N]) and every key.

    `out` and `scratch`, [R, N] int32, save the allocations. int32 products wrap, as the hash wants.
    """
    x = torch.bitwise_xor(table, keys_R2[:, :1], out=out)
    x.mul_(_LOW_A)
    t = torch.bitwise_right_shift(x, 15, out=scratch).bitwise_and_(0x1FFFF)  # the int32 shift copies the sign
    x.bitwise_xor_(t).add_(keys_R2[:, 1:]).mul_(_LOW_B)
    torch.bitwise_right_shift(x, 16, out=t).bitwise_and_(0xFFFF)
    return x.bitwise_xor_(t).bitwise_and_(0x7FFFFFFF)


def exponentials(bits_N: NDArray[np.int32]) -> Float64:
    """Exp(1) variates, float64, from race bits: -log(1 - u) with u = (bits + 1/2) / 2**31, never 0 and never infinite.

    log1p keeps the relative precision of small variates, and it is the small ones that win races.
    """
    u = (bits_N.astype(np.float64) + HALF) * SCALE
    return np.asarray(-np.log1p(-u), dtype=np.float64)
