"""Models on the grids of a file: with products that are exact each is the model of the dequantised weights, which tells
that every matrix is where it belongs; what native code would trust is checked before it is called."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from torch.nn import functional

from asyncpage.errors import ModelError
from asyncpage.kernels.quantised import LAYOUTS, QuantisedProducts, table_bytes
from asyncpage.models.parameter import Parameters
from asyncpage.models.quantised_linear import Grids, MadeGrid, QuantisedEmbedding, QuantisedLinear, SideBySide
from asyncpage.models.registry import build_model, outline_model
from asyncpage.weights.checkpoint import open_checkpoint
from asyncpage.weights.stored import Grid
from tests.weights.blocky_models import BLOCKY
from tests.weights.gguf_conversion import Options, write_gguf

LANES = 8


class ExactProducts:
    """What `QuantisedProducts` does, with rows that are not rounded."""

    def __init__(self) -> None:
        self.tables: dict[int, np.ndarray] = {}

    def pack(self, kind: str, blocks: np.ndarray, columns: int, first: int, table: int) -> None:
        # Floats are a view of memory that the caller may take back.
        values = quants.dequantize(blocks, GGMLQuantizationType[kind]).copy()
        assert values.shape[1] == columns
        before = self.tables.get(table, values[:0]) if first else values[:0]
        assert len(before) == first
        self.tables[table] = np.concatenate([before, values])

    def look_up(self, kind: str, table: int, rows: int, columns: int, ids: int, count: int, out: int) -> None:
        wanted = np.frombuffer((ctypes.c_int64 * count).from_address(ids), np.int64)
        assert self.tables[table].shape == (rows, columns)
        np.frombuffer((ctypes.c_float * (count * columns)).from_address(out), np.float32)[:] = self.tables[table][
            wanted
        ].ravel()

    def multiply(
        self, kind: str, table: int, x: int, y: int, count: int, columns: int, rows: int, x_stride: int, y_stride: int
    ) -> None:
        assert self.tables[table].shape == (rows, columns)
        if count:
            given = numbers(x, count, columns, x_stride)
            numbers(y, count, rows, y_stride)[:] = given @ self.tables[table].T


def numbers(address: int, rows: int, columns: int, stride: int) -> np.ndarray:
    whole = np.frombuffer((ctypes.c_float * ((rows - 1) * stride + columns)).from_address(address), np.float32)
    return np.lib.stride_tricks.as_strided(whole, (rows, columns), (4 * stride, 4))


def attend(layer: int, q_THD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor) -> torch.Tensor:
    """Of one sequence to itself: the same for both models, whatever windows they have."""
    q, k, v = (x.transpose(0, 1) for x in (q_THD, k_TGD, v_TGD))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(0, 1)


@pytest.mark.parametrize("name", BLOCKY)
def test_with_exact_products_it_is_the_model_of_the_dequantised_weights(name: str, tmp_path: Path) -> None:
    original = BLOCKY[name]().float().eval()
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.mul_(0.25)
    path = write_gguf(original, tmp_path / "model.gguf", Options(dtype=GGMLQuantizationType.Q8_0))
    checkpoint, exact = open_checkpoint(path), ExactProducts()
    grids = Grids(checkpoint.grid, checkpoint.blocks, LANES, cast(QuantisedProducts, exact))
    plain, packed = (
        build_model(
            checkpoint.config, lambda tensor: checkpoint.tensor(tensor, torch.float32), torch.float32, "cpu", grids=one
        )
        for one in (None, grids)
    )
    ids = torch.tensor([(7 * at + at * at) % 97 for at in range(30)])
    with torch.inference_mode():
        expected, found = (
            model.logits(model.forward(ids, torch.arange(30), attend)).numpy() for model in (plain, packed)
        )
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4 * np.abs(expected).max())
    assert exact.tables
    whole = outline_model(checkpoint.config, torch.float32).weight_bytes
    held = outline_model(
        checkpoint.config, torch.float32, grids=Grids(checkpoint.grid, checkpoint.blocks, LANES)
    ).weight_bytes
    assert held < whole * 0.45
    checkpoint.close()


class File:
    """Matrices of `kinds` by their names, None for one in float32; biases of ones."""

    def __init__(self, kinds: Mapping[str, str | None], rows: int, columns: int) -> None:
        dice = np.random.default_rng(6)
        self.values: dict[str, np.ndarray] = {}
        self.raw: dict[str, np.ndarray] = {}
        self.kinds = kinds
        for name, kind in kinds.items():
            values = dice.normal(size=(rows, columns)).astype(np.float32)
            if kind is not None:
                self.raw[name] = quants.quantize(values, GGMLQuantizationType[kind])
                values = quants.dequantize(self.raw[name], GGMLQuantizationType[kind])
            self.values[name] = values

    def grid(self, name: str) -> Grid | None:
        kind = self.kinds[name]
        return None if kind is None else Grid(kind, *self.values[name].shape)

    def blocks(self, name: str) -> Iterator[Any]:
        return iter(np.split(self.raw[name], [3]))

    def tensor(self, name: str) -> torch.Tensor:
        if name.endswith(".bias"):
            return torch.arange(len(self.values[name.replace("bias", "weight")])).float()
        return torch.from_numpy(self.values[name])

    def grids(self) -> Grids:
        return Grids(self.grid, self.blocks, LANES, cast(QuantisedProducts, ExactProducts()))

    def parameters(self) -> Parameters:
        return Parameters(self.tensor, torch.float32, grids=self.grids())


@pytest.mark.parametrize(
    ("kinds", "parts"),
    [
        (("Q4_1", "Q4_1", "Q4_1"), 1),
        (("Q4_1", "Q4_1", "Q8_0"), 2),  # as many files have a better value projection
        (("Q8_0", None, "Q8_0"), 3),
        (("F16", "Q4_0", "Q4_0"), 2),
        ((None, None, None), 1),
    ],
    ids=str,
)
def test_matrices_of_several_kinds_keep_their_order_and_their_biases(kinds: tuple[str, ...], parts: int) -> None:
    stems = ["q", "k", "v"]
    file = File({f"{stem}.weight": kind for stem, kind in zip(stems, kinds, strict=True)}, 11, 64)
    linear = file.parameters().linear(stems, [11, 11, 11], 64, is_biased=True)
    assert (len(linear.parts) if isinstance(linear, SideBySide) else 1) == parts
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    whole = torch.cat([file.tensor(f"{stem}.weight") for stem in stems])
    bias = torch.cat([file.tensor(f"{stem}.bias") for stem in stems])
    torch.testing.assert_close(linear(x), functional.linear(x, whole, bias), rtol=1e-4, atol=1e-4)
    assert linear(x[:0]).shape == (0, 33)


def test_a_matrix_of_another_shape_than_the_config_asks_for_is_refused_by_name() -> None:
    file = File({"q.weight": "Q8_0"}, 11, 64)
    with pytest.raises(ModelError, match=r"tensor q\.weight has shape \[11, 64\], the config asks for \[12, 64\]"):
        file.parameters().linear(["q"], [12], 64)


def test_one_of_another_shape_is_refused_by_name_too_where_matrices_are_put_on_grids() -> None:
    file = File({"q.weight": "Q4_1"}, 11, 64)
    grids = replace(file.grids(), made=MadeGrid("Q8_0", "Q8_0"))
    with pytest.raises(ModelError, match=r"tensor q\.weight has shape \[11, 64\], the config asks for \[12, 64\]"):
        Parameters(file.tensor, torch.float32, grids=grids).linear(["q"], [12], 64)


def test_native_code_is_never_called_with_what_it_would_trust_and_is_not_so() -> None:
    called: list[Any] = []
    linear = QuantisedLinear(torch.zeros(1), "Q8_0", 8, 64, 1, lambda *given: called.append(given))
    for wrong in (torch.zeros(3, 32), torch.zeros(3, 2, 64), torch.zeros(3, 64, dtype=torch.bfloat16)):
        with pytest.raises(AssertionError, match="native code trusts what it is given"):
            linear(wrong)
    assert not called
    file = File({"q.weight": "Q8_0"}, 11, 64)
    for rows in (10, 12):
        with pytest.raises(AssertionError, match="rows than the table has"):
            Grids(file.grid, file.blocks, LANES, cast(QuantisedProducts, ExactProducts())).table(
                file.blocks("q.weight"), "Q8_0", rows, 64
            )


def test_tokens_of_any_whole_type_and_order_in_memory_are_looked_up() -> None:
    file = File({"embed.weight": "Q8_0"}, 11, 64)
    parameters = file.parameters()
    embedding = parameters.rows_of(parameters.hold("embed.weight", 11, 64), 0.5)
    assert isinstance(embedding, QuantisedEmbedding)
    tokens = torch.tensor([[3, 10], [0, 1], [3, 2]])
    for given in (tokens[:, 0], tokens[:, 0].int(), tokens[:0, 0]):
        assert torch.equal(embedding(given), 0.5 * file.tensor("embed.weight")[given.long()])


def test_a_table_takes_what_is_said() -> None:
    file = File({"q.weight": "Q4_1"}, 11, 64)
    parameters = file.parameters()
    parameters.linear(["q"], [11], 64)
    assert parameters.taken_bytes == table_bytes("Q4_1", 11, 64, LANES) == 16 * 2 * LAYOUTS["Q4_1"].file_bytes
