"""The element types of GGUF tensors that we read: their layout in bytes and their values in float32.

The GGUF reader looks types up by number and calls `dequantize`; the layouts follow ggml's `ggml-common.h`.

INVARIANT: values are bit for bit those of the format's reference implementation, because every product and sum
is done in float32 in its order: scale times quant first, offset after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Blocks: TypeAlias = npt.NDArray[Any]  # [B] records of a block layout
Floats: TypeAlias = npt.NDArray[np.float32]

_HALF = ("<f2", (1,))  # a float16 that broadcasts over its block's elements


@dataclass(frozen=True, slots=True)
class BlockType:
    """One type: `elements` values share a record of `size` bytes."""

    name: str
    number: int  # ggml's
    elements: int
    layout: np.dtype[Any]
    expand: Callable[[Blocks, Floats], None]

    @property
    def size(self) -> int:
        return int(self.layout.itemsize)

    def dequantize(self, data: npt.NDArray[np.uint8], out: Floats) -> None:
        """Fill `out`, float32 [n * elements] and contiguous, from `data`, uint8 [n * size]."""
        blocks = data.view(self.layout)
        step = max(1, _CHUNK_ELEMENTS // self.elements)
        values = out.reshape(len(blocks), self.elements)
        # Scales that are infinite or NaN are the file's own; they become values, not warnings.
        with np.errstate(all="ignore"):
            for start in range(0, len(blocks), step):
                self.expand(blocks[start : start + step], values[start : start + step])


# Float32 output of one chunk is 256 KiB, so that its passes stay in the second-level cache.
_CHUNK_ELEMENTS = 65536


def _expand_float(blocks: Blocks, out: Floats) -> None:
    out[:, 0] = blocks["value"]


def _expand_bf16(blocks: Blocks, out: Floats) -> None:
    # A bfloat16 is the upper half of a float32.
    np.left_shift(blocks["value"], 16, out=out.view(np.uint32)[:, 0], dtype=np.uint32)


def _expand_q4_0(blocks: Blocks, out: Floats) -> None:
    _nibbles(blocks["low"], out)
    out -= 8
    out *= blocks["scale"].astype(np.float32)


def _expand_q4_1(blocks: Blocks, out: Floats) -> None:
    _nibbles(blocks["low"], out)
    out *= blocks["scale"].astype(np.float32)
    out += blocks["offset"].astype(np.float32)


def _expand_q5_0(blocks: Blocks, out: Floats) -> None:
    _nibbles(blocks["low"], out)
    out += _fifth_bits(blocks)
    out -= 16
    out *= blocks["scale"].astype(np.float32)


def _expand_q5_1(blocks: Blocks, out: Floats) -> None:
    _nibbles(blocks["low"], out)
    out += _fifth_bits(blocks)
    out *= blocks["scale"].astype(np.float32)
    out += blocks["offset"].astype(np.float32)


def _expand_q8_0(blocks: Blocks, out: Floats) -> None:
    np.multiply(blocks["quant"], blocks["scale"].astype(np.float32), out=out, dtype=np.float32)


def _expand_q4_k(blocks: Blocks, out: Floats) -> None:
    _nibbles(blocks["low"].reshape(-1, 32), out.reshape(-1, 64))
    _scale_and_offset(blocks, out)


def _expand_q5_k(blocks: Blocks, out: Floats) -> None:
    _nibbles(blocks["low"].reshape(-1, 32), out.reshape(-1, 64))
    sub_blocks = out.reshape(-1, 8, 32)
    for index in range(8):  # bit i of the shared 32 bytes belongs to sub-block i
        sub_blocks[:, index] += (blocks["high"] >> index & 1) << 4
    _scale_and_offset(blocks, out)


def _expand_q6_k(blocks: Blocks, out: Floats) -> None:
    low = blocks["low"].reshape(-1, 2, 2, 32)  # [B, half, first or second 32 bytes, 32]
    high = blocks["high"].reshape(-1, 2, 32)
    quarters = out.reshape(-1, 2, 4, 32)
    for quarter in range(4):
        nibble = low[:, :, quarter % 2] >> (4 * (quarter // 2)) & 15
        quarters[:, :, quarter] = nibble | (high >> (2 * quarter) & 3) << 4
    out -= 32
    scale = blocks["scale"].astype(np.float32) * blocks["sub_scale"].astype(np.float32)
    out.reshape(-1, 16, 16)[...] *= scale[:, :, None]


def _nibbles(packed: npt.NDArray[np.uint8], out: Floats) -> None:
    """Low nibbles of packed [n, w] to the first w columns of out [n, 2 w], high ones to the rest."""
    width = packed.shape[1]
    out[:, :width] = packed & 15
    out[:, width:] = packed >> 4


def _fifth_bits(blocks: Blocks) -> npt.NDArray[np.uint8]:
    """uint8 [B, 32], 16 where bit i of the block's four bytes is set, else 0."""
    return np.left_shift(np.unpackbits(blocks["high"], axis=1, bitorder="little"), 4, dtype=np.uint8)


def _scale_and_offset(blocks: Blocks, out: Floats) -> None:
    """Scale out [B, 256] and subtract its offset, by the eight 6-bit pairs packed into twelve bytes.

    Bytes 0 to 3 and 4 to 7 hold the first four scales and offsets in their low six bits; the other four have
    their low nibbles in bytes 8 to 11 and their upper two bits on top of the first four.
    """
    first, second, third = np.split(blocks["packed"], 3, axis=1)
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    offsets = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    values = out.reshape(-1, 8, 32)
    values *= (blocks["scale"].astype(np.float32) * scales.astype(np.float32))[:, :, None]
    values -= (blocks["offset"].astype(np.float32) * offsets.astype(np.float32))[:, :, None]


def _type(
    name: str, number: int, elements: int, expand: Callable[[Blocks, Floats], None], *fields: tuple[Any, ...]
) -> BlockType:
    return BlockType(name, number, elements, np.dtype(list(fields)), expand)


_SCALE = ("scale", *_HALF)
_OFFSET = ("offset", *_HALF)

BLOCK_TYPES = (
    _type("F32", 0, 1, _expand_float, ("value", "<f4")),
    _type("F16", 1, 1, _expand_float, ("value", "<f2")),
    _type("Q4_0", 2, 32, _expand_q4_0, _SCALE, ("low", "u1", 16)),
    _type("Q4_1", 3, 32, _expand_q4_1, _SCALE, _OFFSET, ("low", "u1", 16)),
    _type("Q5_0", 6, 32, _expand_q5_0, _SCALE, ("high", "u1", 4), ("low", "u1", 16)),
    _type("Q5_1", 7, 32, _expand_q5_1, _SCALE, _OFFSET, ("high", "u1", 4), ("low", "u1", 16)),
    _type("Q8_0", 8, 32, _expand_q8_0, _SCALE, ("quant", "i1", 32)),
    _type("Q4_K", 12, 256, _expand_q4_k, _SCALE, _OFFSET, ("packed", "u1", 12), ("low", "u1", 128)),
    _type("Q5_K", 13, 256, _expand_q5_k, _SCALE, _OFFSET, ("packed", "u1", 12), ("high", "u1", 32), ("low", "u1", 128)),
    _type("Q6_K", 14, 256, _expand_q6_k, ("low", "u1", 128), ("high", "u1", 64), ("sub_scale", "i1", 16), _SCALE),
    _type("BF16", 30, 1, _expand_bf16, ("value", "<u2")),
)

# Types that exist and that we do not read, so that a refusal can say which one it met.
OTHER_TYPE_NAMES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
