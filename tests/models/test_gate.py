"""The gate of feed-forwards beside native products: what float64 says, and the same to the bit in any company."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from torch.nn import functional

from asyncpage.backends.device import device_named
from asyncpage.executor.grids import open_grids
from asyncpage.kernels.loaded import Library, current_library
from asyncpage.kernels.stack import Activation
from asyncpage.models.decoder import Decoder
from asyncpage.models.experts import GroupedExperts, MixtureOfExperts, WeighedExpert
from asyncpage.models.gate import native_gate, native_kind
from asyncpage.models.layers import ACTIVATIONS, GatedFeedForward
from asyncpage.models.registry import build_model
from asyncpage.weights.checkpoint import open_checkpoint
from tests.weights.blocky_models import BLOCKY
from tests.weights.gguf_conversion import Options, write_gguf


@pytest.fixture
def library() -> Library:
    found = current_library()
    assert isinstance(found, Library), found
    return found


def test_a_gate_is_that_of_float64_whatever_lies_between_its_rows(library: Library) -> None:
    whole = torch.randn(70, 3 * 77, generator=torch.Generator().manual_seed(3)) * 4
    for x in (whole[:, : 2 * 77], whole[:, : 2 * 77].contiguous(), whole[:0, : 2 * 77]):
        gate, up = x.double().chunk(2, dim=-1)
        off = (native_gate(Activation.SILU, library)(x).double() - functional.silu(gate) * up).abs()
        assert (off <= 1e-6 * (1 + gate.abs()) * up.abs()).all()


def test_a_row_of_a_mixture_is_given_the_same_to_the_bit_beside_as_many_as_threads_share(tmp_path: Path) -> None:
    """More threads than cores: torch cuts what they share inside rows."""
    path = write_gguf(BLOCKY["mixtral"](), tmp_path / "model.gguf", Options(dtype=GGMLQuantizationType.Q8_0))
    checkpoint = open_checkpoint(path)
    grids = open_grids({}, checkpoint, device_named("cpu"), "float32")
    model = build_model(
        checkpoint.config, lambda name: checkpoint.tensor(name, torch.float32), torch.float32, "cpu", grids=grids
    )
    assert isinstance(model, Decoder)
    mixture = model.layers[0].feed_forward
    assert isinstance(mixture, MixtureOfExperts)
    assert isinstance(mixture.experts, GroupedExperts)
    expert = mixture.experts.experts[0]
    assert isinstance(expert, GatedFeedForward)
    assert expert.native_gate is not None
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        with torch.inference_mode():
            for part in (mixture, expert):
                x = torch.randn(1009, 96, generator=torch.Generator().manual_seed(5))
                whole = part(x)
                for row in range(0, 1009, 7):
                    assert torch.equal(part(x[row : row + 1])[0], whole[row])
    finally:
        torch.set_num_threads(before)
    checkpoint.close()


def test_a_shared_expert_is_weighed_alike_alone_and_in_a_batch() -> None:
    gates = torch.randn(1000, 1, generator=torch.Generator().manual_seed(2)) * 3
    part = WeighedExpert(torch.clone, lambda x: x)
    whole = part(gates)
    torch.testing.assert_close(whole.double(), gates.double() * gates.double().sigmoid(), rtol=1e-6, atol=0)
    for row in range(1000):
        assert torch.equal(part(gates[row : row + 1])[0], whole[row])


def test_what_native_code_has_no_gate_for_is_torchs() -> None:
    assert native_kind(ACTIVATIONS["gelu"]) is None
    assert native_kind(ACTIVATIONS["swish"]) is Activation.SILU
