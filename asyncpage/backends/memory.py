"""Allocates one layer's KV tensor as a backend's layout asks. Called by the executor, once a layer at start."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from asyncpage.backends.contract import DeviceInfo, KVLayout


def allocate_kv(layout: KVLayout, blocks: int, device: DeviceInfo) -> Tensor:
    """A zeroed tensor of `layout.shape_of(blocks)`; `blocks * layout.block_bytes` bytes.

    On a CPU the pages are taken when they are first written.
    """
    # Allocated in memory order and permuted, because torch has no zeroed empty_strided.
    order = layout.stride_order or tuple(range(len(layout.shape)))
    shape = [layout.shape_of(blocks)[axis] for axis in order]
    dtype = getattr(torch, layout.dtype)
    if device.kind == "cpu":
        # numpy asks the kernel for zeroed pages; torch.zeros writes every one of them (10 s and all of 2 GiB at once).
        memory = torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
    else:
        memory = torch.zeros(shape, dtype=dtype, device=device.torch_device)
    return memory.permute([order.index(axis) for axis in range(len(order))])
