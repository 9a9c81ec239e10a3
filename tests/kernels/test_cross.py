"""The native code of every variant as a program: those of other processors are compiled for them and run by qemu."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from asyncpage.kernels import native
from asyncpage.kernels.quantised import FLOATS, LAYOUTS
from asyncpage.kernels.variant import VARIANTS, Variant, read_processor
from tests.kernels.blocks import product, random_blocks, rows_like, values_of

PROGRAM = Path(__file__).with_name("vectors.cpp")
CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")
COUNT = 64 * 16
SHAPES = [(kind, *shape) for kind in LAYOUTS for shape in ((1, 256, 1), (21, 512, 15))] + [(FLOATS, 13, 37, 9)]
"""Kind, outputs, columns and rows."""


def commands(variant: Variant) -> tuple[str, tuple[str, ...]]:
    """The compiler, and what runs its programs."""
    if variant.suits(read_processor()):
        return "c++", ()
    if "aarch64" not in variant.machines:
        pytest.skip(f"hardware: this processor does not run {variant.name}")
    if lacking := [name for name in (CROSS_COMPILER, EMULATOR[0]) if shutil.which(name) is None]:
        pytest.skip(f"{' and '.join(lacking)} must be installed")
    return CROSS_COMPILER, EMULATOR


class Found:
    """What the program gives, in the order in which it was asked."""

    def __init__(self, given: bytes) -> None:
        self._given = np.frombuffer(given, np.float32)

    def take(self, *shape: int) -> np.ndarray:
        count = int(np.prod(shape))
        found, self._given = self._given[:count], self._given[count:]
        return found.reshape(shape)

    def is_over(self) -> bool:
        return not len(self._given)


def numbers() -> Iterator[np.ndarray]:
    """Two columns of numbers and one of halves: finite, but for a few."""
    dice = np.random.default_rng(4)
    for special in ((np.nan, np.inf, -np.inf, 0.0, 88.0, -86.9, 200.0, -200.0), (1.0,) * 8):
        column = (dice.normal(size=COUNT) * 30).astype(np.float32)
        column[:8] = special
        yield column
    yield dice.integers(0, 0x7C00, COUNT).astype(np.uint16)


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: variant.name)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    variant: Variant = request.param
    compiler, runner = commands(variant)
    program = tmp_path_factory.mktemp("cross") / "program"
    # The functions that a library has to itself are the program's, too.
    flags = [flag for flag in native.FLAGS if flag not in ("-shared", "-fPIC")]
    subprocess.run(
        [compiler, *flags, *variant.flags, "-I", str(native.SOURCES), str(PROGRAM), "-o", str(program)], check=True
    )
    given = [np.int64(COUNT).tobytes(), *(column.tobytes() for column in numbers()), np.int64(len(SHAPES)).tobytes()]
    for kind, outputs, columns, rows in SHAPES:
        blocks = random_blocks(kind, outputs, columns, seed=rows)
        sizes = np.array([[*LAYOUTS].index(kind), outputs, columns, rows, blocks.size], np.int64)
        given += [sizes.tobytes(), blocks.tobytes(), x_of(columns, rows).numpy().tobytes()]
    ran = subprocess.run([*runner, program], input=b"".join(given), capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return Found(ran.stdout)


def x_of(columns: int, rows: int) -> torch.Tensor:
    if columns % 32:
        return torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns))
    return rows_like(rows, columns)


def test_it_computes_what_numpy_and_the_reference_library_do(found: Found) -> None:
    a, b, halves = numbers()
    with np.errstate(all="ignore"):
        exact = [a + b, a - b, a * b, a / b, (a.astype(np.float64) * b + a).astype(np.float32)]
        for wanted in (*exact, np.where(a > b, a, b), np.where(a < b, a, b), np.rint(a)):
            is_number = ~np.isnan(a)
            np.testing.assert_array_equal(found.take(COUNT)[is_number], wanted[is_number])
        power = found.take(COUNT)
        wanted_power = np.exp(np.clip(a, np.float32(-86.9), np.float32(88.0)).astype(np.float64))
        assert np.isnan(power[0])
        np.testing.assert_allclose(power[1:], wanted_power[1:], rtol=2.5e-7)
        np.testing.assert_array_equal(found.take(COUNT)[8:], np.rint(a)[8:])
    np.testing.assert_array_equal(found.take(COUNT), halves.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(found.take(COUNT), (halves.astype(np.uint32) << 16).view(np.float32))
    for kind, outputs, columns, rows in SHAPES:
        blocks, x = random_blocks(kind, outputs, columns, seed=rows), x_of(columns, rows)
        wanted, size = product(kind, blocks, x)
        together, alone = found.take(rows, outputs), found.take(rows, outputs)
        np.testing.assert_array_less(np.abs(together - wanted), 3e-6 * size + 1e-30, err_msg=kind)
        np.testing.assert_array_equal(alone, together, err_msg=kind)
        np.testing.assert_array_equal(found.take(outputs, columns), values_of(kind, blocks), err_msg=kind)
    assert found.is_over()
