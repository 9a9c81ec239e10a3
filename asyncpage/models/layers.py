"""The parts that models are made of: norms, linear map, gated feed-forward.

Plain functions and small holders of weights; nothing here knows about sequences or caches.

INVARIANT: every part maps rows to rows, so that a row of NaN spoils no other row.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True, eq=False)
class RmsNorm:
    """Root-mean-square norm (Zhang and Sennrich 2019), in float32 inside. `weight` [E]."""

    weight: Tensor
    eps: float

    def __call__(self, x_TE: Tensor) -> Tensor:
        return functional.rms_norm(x_TE, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True, slots=True, eq=False)
class LayerNorm:
    """Layer norm (Ba, Kiros and Hinton 2016). `weight`, `bias` [E]."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x_TE: Tensor) -> Tensor:
        return functional.layer_norm(x_TE, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """`weight` [out, in], `bias` [out] or None."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x_TI: Tensor) -> Tensor:
        return functional.linear(x_TI, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class SwiGlu:
    """The gated feed-forward (Shazeer 2020): down(silu(gate(x)) * up(x)); gate and up are one product."""

    gate_up: Linear
    down: Linear

    def __call__(self, x_TE: Tensor) -> Tensor:
        gate, up = self.gate_up(x_TE).chunk(2, dim=-1)
        return self.down(functional.silu(gate).mul_(up))
