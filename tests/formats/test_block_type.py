"""Dequantisation against the `gguf` package, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from gguf.constants import GGML_QUANT_SIZES

from asyncpage.formats.block_type import BLOCK_TYPES, OTHER_TYPE_NAMES, BlockType
from asyncpage.formats.gguf import GGUFFile

every_type = pytest.mark.parametrize("kind", BLOCK_TYPES, ids=lambda kind: kind.name)


def expected(data: np.ndarray, kind: BlockType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return quants.dequantize(data, GGMLQuantizationType[kind.name])


def dequantized(data: np.ndarray, kind: BlockType) -> np.ndarray:
    out = np.full(data.size // kind.size * kind.elements, 7, np.float32)
    kind.dequantize(data.reshape(-1), out)
    return out


def test_numbers_and_sizes_are_those_of_the_format() -> None:
    ours = {kind.number: (kind.name, kind.elements, kind.size) for kind in BLOCK_TYPES}
    theirs = {int(kind): (kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}
    assert ours.items() <= theirs.items()
    assert {number: entry[0] for number, entry in theirs.items() if number not in ours} == OTHER_TYPE_NAMES


@every_type
@pytest.mark.parametrize("blocks", [1, 3, 2 * 65536 // 256 + 1])  # the last needs more than two chunks of K blocks
def test_random_bytes_give_the_package_s_bits(kind: BlockType, blocks: int) -> None:
    # Half of the scales that random bytes make are huge, infinite or not numbers: these bits count as well.
    data = np.random.default_rng(blocks).integers(0, 256, (4, blocks * kind.size), dtype=np.uint8)
    np.testing.assert_array_equal(
        dequantized(data, kind).view(np.uint32), expected(data, kind).reshape(-1).view(np.uint32)
    )


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16", "F32"])
def test_quantised_values_come_back_close(name: str) -> None:
    kind = next(kind for kind in BLOCK_TYPES if kind.name == name)
    values = np.random.default_rng(1).standard_normal((8, 256)).astype(np.float32)
    data = quants.quantize(values, GGMLQuantizationType[name]).view(np.uint8)
    # Within half a step of sixteen over a range of at most eight standard deviations.
    np.testing.assert_allclose(dequantized(data, kind).reshape(8, 256), values, atol=0.5)


def test_every_tensor_of_the_demo_model_has_the_package_s_bits(demo_model: Path) -> None:
    file = GGUFFile(demo_model)
    for name, info in file.tensors.items():
        raw = np.array(file.raw(name)).reshape(*info.shape[:-1], -1)
        want = quants.dequantize(raw, GGMLQuantizationType[info.dtype])
        got = file.dequantize(name)
        assert got.shape == info.shape
        assert np.array_equal(got.view(np.uint32), want.view(np.uint32)), name
    assert sorted({info.dtype for info in file.tensors.values()}) == ["F32", "Q4_1", "Q8_0"]
    file.close()
