"""The contract's values."""

import os
import subprocess
import sys

import pytest
import torch

from asyncpage.backends.contract import AttentionSpec, DeviceInfo, KVLayout
from asyncpage.backends.memory import allocate_kv
from asyncpage.pipes.launcher import CHILD_ENVIRONMENT


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


def test_a_pool_takes_memory_as_it_is_written_also_under_an_executors_allocator_settings():
    """A child with those settings: 2 GiB are allocated, a block of it is written, and that much becomes resident."""
    code = (
        "import torch\n"
        "from asyncpage.backends.contract import DeviceInfo, KVLayout\n"
        "from asyncpage.backends.memory import allocate_kv\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "before, layout = resident(), KVLayout((2, -1, 16, 16, 64), 'float32')\n"
        "pool = [allocate_kv(layout, 8192, DeviceInfo('cpu', 'x86_64')) for _ in range(2)]\n"
        "pool[1][:, 4096] = 1.0\n"
        "assert pool[1].nbytes == 1 << 30\n"
        "print(resident() - before)"
    )
    environment = {**os.environ, **CHILD_ENVIRONMENT}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60, capture_output=True)
    assert int(done.stdout) < 64 << 20


def test_a_spec_asks_nothing_of_an_older_contract_by_itself():
    spec = AttentionSpec("mha", 6, 2, 64, 64, "float32", "float32", 16, window=4, softcap=2.0)
    assert spec.asks_beyond(1) == ()
    # every field came with contract 1, so contract 0 would not know what differs from neutral
    assert set(spec.asks_beyond(0)) >= {"window", "softcap"}


def test_a_rocm_device_answers_to_torchs_name():
    assert DeviceInfo("rocm", "gfx942", 1).torch_device == "cuda:1"
    assert str(DeviceInfo("rocm", "gfx942", 1)) == "rocm (gfx942)"
