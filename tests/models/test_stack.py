"""A decoder's layers as lists of native operators: what its parts compute, and the same to the bit in any step."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from torch.nn import functional

from asyncpage.backends.contract import Batch, DeviceInfo, Limits
from asyncpage.backends.registry import load
from asyncpage.executor.attention import PagedAttention
from asyncpage.kernels.loaded import Library, current_library
from asyncpage.kernels.quantised import QuantisedProducts
from asyncpage.kernels.stack import Activation, Instruction, NativeStack, Operation
from asyncpage.models import stack as room
from asyncpage.models.decoder import Decoder
from asyncpage.models.layers import HeadNorm, RowMap
from asyncpage.models.quantised_linear import Grids
from asyncpage.models.registry import build_model
from asyncpage.models.stack import Stack
from asyncpage.weights.checkpoint import Checkpoint, open_checkpoint
from tests.weights.blocky_models import BLOCKY
from tests.weights.gguf_conversion import Options, write_gguf

CPU = DeviceInfo("cpu", "any")
BLOCK = 16
IDS = torch.tensor([(7 * at + at * at) % 97 for at in range(60)])

# How many calls of native code and of parts a step takes: a mixture, and attention over latent rows, have no operators.
PIECES = {"mixtral": (3, 2), "qwen3moe": (3, 2), "deepseek2-lite": (6, 5)}


@pytest.fixture(scope="module")
def library() -> Library:
    found = current_library()
    assert isinstance(found, Library), found
    return found


@pytest.fixture(scope="module", params=BLOCKY)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoint]:
    model = BLOCKY[request.param]().float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.25)
    path = tmp_path_factory.mktemp("stack") / f"{request.param}.gguf"
    opened = open_checkpoint(write_gguf(model, path, Options(dtype=GGMLQuantizationType.Q8_0)))
    yield opened
    opened.close()


class Scene:
    """A model with a cache of its own. `grids`: None for a plain one."""

    def __init__(self, checkpoint: Checkpoint, backend: str, grids: Grids | None) -> None:
        model = build_model(
            checkpoint.config, lambda name: checkpoint.tensor(name, torch.float32), torch.float32, "cpu", grids=grids
        )
        assert isinstance(model, Decoder)
        self.model, limits = model, Limits(max_seqs=2, max_tokens=128, max_kv=128)
        specs = model.specs("float32", BLOCK)
        self.attention = PagedAttention(
            load(backend), specs, model.layer_groups, model.layer_slots, model.layer_params, CPU, limits, 20
        )

    def run(self, layers: Decoder | Stack, rows: list[tuple[int, int, int]]) -> list[torch.Tensor]:
        """(sequence, from, to) in one step: hidden states of each."""
        starts = np.cumsum([0, *(end - begin for _, begin, end in rows)]).astype(np.int32)
        lengths = np.array([end for _, _, end in rows], dtype=np.int32)
        table = torch.tensor([[1 + 8 * number + block for block in range(8)] for number, _, _ in rows]).int()
        positions = torch.cat([torch.arange(begin, end) for _, begin, end in rows])
        owners = torch.repeat_interleave(torch.arange(len(rows)), torch.from_numpy(np.diff(starts)))
        slots = table[owners, positions // BLOCK].long() * BLOCK + positions % BLOCK
        batch = Batch(
            n_seqs=len(rows), n_tokens=len(slots), max_q=int(np.diff(starts).max()), max_kv=int(lengths.max()),
            cu_q_host=starts, kv_len_host=lengths, cu_q=torch.from_numpy(starts), kv_len=torch.from_numpy(lengths),
            block_table=table, slots=slots,
        )  # fmt: skip
        tokens = torch.cat([IDS[begin:end] + number for number, begin, end in rows])
        with torch.inference_mode():
            self.attention.plan([batch] * len(self.model.groups))
            found = layers.forward(tokens, positions, self.attention.attend)
        return [found[begin:end] for begin, end in itertools.pairwise(starts.tolist())]


def on_tables(checkpoint: Checkpoint, library: Library, *, is_on_grid: bool) -> Grids:
    grid = checkpoint.grid if is_on_grid else (lambda name: None)
    products = QuantisedProducts(library.code, library.threads)
    return Grids(grid, checkpoint.blocks, library.variant.lanes, products)


def test_it_computes_what_the_parts_do(
    checkpoint: Checkpoint, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 throughout, where last bits stay last bits; the parts' attention is the reference's."""
    monkeypatch.setattr(room, "_FIRST_POSITIONS", 8)  # so that angles are added to
    plain = Scene(checkpoint, "reference", None)
    scene = Scene(checkpoint, "native", on_tables(checkpoint, library, is_on_grid=False))
    stack = Stack(scene.model, library, scene.attention.calls)
    for rows in ([(0, 0, 5), (1, 0, 1)], [(0, 5, 40)], [(1, 1, 33)], [(0, 40, 41), (1, 33, 34)]):
        for found, wanted in zip(scene.run(stack, rows), plain.run(plain.model, rows), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_on_its_grid_a_row_is_given_the_same_to_the_bit_in_any_step(checkpoint: Checkpoint, library: Library) -> None:
    scene = Scene(checkpoint, "native", on_tables(checkpoint, library, is_on_grid=True))
    stack = Stack(scene.model, library, scene.attention.calls)
    wanted = [scene.run(stack, [(number, 0, 60)])[0] for number in range(2)]
    assert all(of.isfinite().all() for of in wanted)
    for begin, end in itertools.pairwise([0, 1, 2, 10, 11, 43, 59, 60]):
        found = scene.run(stack, [(0, begin, end), (1, begin, end)])
        for number in range(2):
            assert torch.equal(found[number], wanted[number][begin:end])


def test_parts_without_operators_are_called_where_they_stand(
    checkpoint: Checkpoint, library: Library, request: pytest.FixtureRequest
) -> None:
    scene = Scene(checkpoint, "native", on_tables(checkpoint, library, is_on_grid=True))
    stack = Stack(scene.model, library, scene.attention.calls)
    name = request.node.callspec.params["checkpoint"]
    assert (stack.native_calls, stack.other_calls) == PIECES.get(name, (1, 0))


def test_a_backend_without_functions_is_called_too(checkpoint: Checkpoint, library: Library) -> None:
    scene = Scene(checkpoint, "cpu", on_tables(checkpoint, library, is_on_grid=False))
    plain = Scene(checkpoint, "reference", None)
    stack = Stack(scene.model, library, scene.attention.calls)
    for found, wanted in zip(scene.run(stack, [(0, 0, 20)]), plain.run(plain.model, [(0, 0, 20)]), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
    assert stack.other_calls >= len(scene.model.layers)


class List:
    """One operator over buffers of random rows."""

    def __init__(self, library: Library, *shapes: tuple[int, int]) -> None:
        dice = torch.Generator().manual_seed(4)
        self.rows = [torch.randn(shape, generator=dice) * 3 for shape in shapes]
        self.positions = torch.arange(len(self.rows[0]))
        self.native = NativeStack(library, len(shapes), 1)
        for buffer, rows in zip(self.native.buffers, self.rows, strict=True):
            buffer.at, buffer.stride = rows.data_ptr(), rows.stride(0)

    def run(self, operation: Operation, **fields: Any) -> None:
        self.native.run(
            (Instruction * 1)(Instruction(operation=operation, **fields)), len(self.rows[0]), self.positions.data_ptr()
        )


@pytest.mark.parametrize("width", [1, 7, 16, 33, 96, 576])
def test_a_norm_is_that_of_float64(library: Library, width: int) -> None:
    of = List(library, (9, width), (9, width + 3))
    of.rows[0][3] *= 1e-3
    weight = torch.rand(width) + 0.5
    of.run(Operation.NORM, source=0, target=1, target_at=2, width=width, weight=weight.data_ptr(), eps=1e-5)
    wanted = functional.rms_norm(of.rows[0].double(), (width,), weight.double(), 1e-5)
    torch.testing.assert_close(of.rows[1][:, 2 : 2 + width].double(), wanted, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "oracle"),
    [
        (Activation.SILU, functional.silu),
        (Activation.GELU_TANH, lambda x: functional.gelu(x, approximate="tanh")),
        (Activation.RELU, functional.relu),
    ],
)
@pytest.mark.parametrize("width", [5, 16, 50])
def test_a_gate_is_that_of_float64(library: Library, kind: Activation, oracle: RowMap, width: int) -> None:
    of = List(library, (6, 2 * width), (6, width))
    of.rows[0][2] *= 100
    of.run(Operation.GATE, kind=kind, source=0, target=1, width=width)
    gate, up = of.rows[0].double().chunk(2, dim=-1)
    off = (of.rows[1].double() - oracle(gate) * up).abs()
    assert (off <= 1e-6 * (1 + gate.abs()) * up.abs()).all()


def test_what_is_no_number_stays_so_and_in_its_row(library: Library) -> None:
    for operation in (Operation.GATE, Operation.NORM):
        of = List(library, (5, 40), (5, 20))
        of.rows[0][2, 3] = torch.nan
        weight = torch.ones(20)
        of.run(operation, source=0, target=1, width=20, weight=weight.data_ptr(), eps=1e-5)
        assert of.rows[1][2, 3].isnan()
        assert of.rows[1][[0, 1, 3, 4]].isfinite().all()


def test_norms_of_heads_and_sums_touch_their_columns_alone(library: Library) -> None:
    of = List(library, (4, 70), (4, 70))
    before = [rows.clone() for rows in of.rows]
    weight = torch.rand(3, 20) + 0.5
    of.run(Operation.HEAD_NORM, source=0, target=0, heads=3, width=20, weight=weight.data_ptr(), eps=1e-6)
    heads = before[0][:, :60].view(4, 3, 20)
    torch.testing.assert_close(of.rows[0][:, :60].view(4, 3, 20), HeadNorm(weight, 1e-6)(heads), rtol=2e-6, atol=1e-6)
    assert torch.equal(of.rows[0][:, 60:], before[0][:, 60:])
    of.run(Operation.ADD, source=1, source_at=5, target=0, target_at=10, width=37)
    assert torch.equal(of.rows[0][:, 60:], before[0][:, 60:])
    of.run(Operation.BIAS, target=1, target_at=3, width=20, weight=weight.data_ptr())
    assert torch.equal(of.rows[1][:, 3:23], before[1][:, 3:23] + weight[0])
    assert torch.equal(of.rows[1][:, 23:], before[1][:, 23:])


def test_why_a_part_is_called_is_told(checkpoint: Checkpoint, request: pytest.FixtureRequest) -> None:
    model = build_model(
        checkpoint.config, lambda name: checkpoint.tensor(name, torch.float32), torch.float32, "cpu", grids=None
    )
    assert isinstance(model, Decoder)
    name, layer = request.node.callspec.params["checkpoint"], model.layers[-1]
    attention = "LatentAttention" if name.startswith("deepseek") else "Linear"
    forward = "MixtureOfExperts" if name in PIECES else "Linear"
    assert attention in room.why_attention_is_called(layer.attention)
    assert forward in room.why_feed_forward_is_called(layer.feed_forward)


def test_what_python_hands_over_is_laid_out_as_the_library_has_it() -> None:
    """Every field takes eight bytes, so that none is padded."""
    assert ctypes.sizeof(Instruction) == 8 * len(Instruction._fields_)
