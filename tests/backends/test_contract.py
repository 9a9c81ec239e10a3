"""The contract's values."""

import subprocess
import sys

import pytest
import torch

from asyncpage.backends.contract import AttentionSpec, DeviceInfo, KVLayout
from asyncpage.backends.memory import allocate_kv


def test_the_contract_is_read_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import asyncpage.backends.contract, asyncpage.backends.device, asyncpage.backends.registry"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("order", [(), (2, 0, 3, 1, 4)])
def test_a_layout_tells_the_strides_of_the_tensor_that_is_allocated(order):
    layout = KVLayout((2, 3, -1, 16, 8), "bfloat16", stride_order=order)
    kv = allocate_kv(layout, 5, DeviceInfo("cpu", "x86_64"))
    assert kv.dtype == torch.bfloat16
    assert kv.shape == (2, 3, 5, 16, 8)
    assert kv.stride() == layout.strides_of(5)
    assert layout.block_axis == 2
    assert 5 * layout.block_bytes == kv.untyped_storage().nbytes() == kv.nbytes
    assert int(kv.count_nonzero()) == 0


def test_a_spec_asks_nothing_of_an_older_contract_by_itself():
    spec = AttentionSpec("mha", 6, 2, 64, 64, "float32", "float32", 16, window=4, softcap=2.0)
    assert spec.asks_beyond(1) == ()
    # every field came with contract 1, so contract 0 would not know what differs from neutral
    assert set(spec.asks_beyond(0)) >= {"window", "softcap"}


def test_a_rocm_device_answers_to_torchs_name():
    assert DeviceInfo("rocm", "gfx942", 1).torch_device == "cuda:1"
    assert str(DeviceInfo("rocm", "gfx942", 1)) == "rocm (gfx942)"
