"""The gate of a feed-forward by native code: where a row's numbers must not depend on how many rows there are.

`Parameters` gives it to feed-forwards whose products are native. torch computes an activation of what is left behind
the last whole vector of a thread's share in another way, so last bits depend on rows and threads.

INVARIANT: a row is given the same, bit for bit, alone and in any company.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncpage.kernels.loaded import Library
from asyncpage.kernels.stack import Activation, Instruction, NativeStack, Operation
from asyncpage.models.layers import ACTIVATIONS, RowMap

_KINDS = {
    id(ACTIVATIONS["silu"]): Activation.SILU,
    id(ACTIVATIONS["gelu_new"]): Activation.GELU_TANH,
    id(ACTIVATIONS["gelu_pytorch_tanh"]): Activation.GELU_TANH,
    id(ACTIVATIONS["relu"]): Activation.RELU,
}


def native_kind(activation: RowMap) -> Activation | None:
    """What native code calls one of `layers.ACTIVATIONS`; None where it has none."""
    return _KINDS.get(id(activation))


def native_gate(kind: Activation, library: Library) -> RowMap:
    """float32 rows [T, 2 * W] to [T, W]: the activation of the first half times the second."""
    native, instructions = NativeStack(library, 2, 0), (Instruction * 1)()

    def gate(x_TI: Tensor) -> Tensor:
        rows, width = len(x_TI), x_TI.shape[1] // 2
        x_TI, out_TO = x_TI.contiguous(), torch.empty(rows, width)
        for buffer, tensor in zip(native.buffers, (x_TI, out_TO), strict=True):
            buffer.at, buffer.stride = tensor.data_ptr(), tensor.stride(0)
        instructions[0] = Instruction(operation=Operation.GATE, kind=kind, source=0, target=1, width=width)
        native.run(instructions, rows, 0)
        return out_TO

    return gate
