"""The parts that models are made of: embedding, norms, linear map, gated feed-forward, head.

Plain functions and small holders of weights; nothing here knows about sequences or caches.

INVARIANT: every part maps rows to rows, so that a row of NaN spoils no other row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

_FEW_ROWS = 32 if torch.backends.cpu.get_cpu_capability() == "AVX2" else 0
"""With so few rows but more than one a product on a CPU is faster with the weights as its left side, where torch's
library has no good way of its own: 1.2 to 3 times on a machine with AVX2, and 0.4 to 1.0 times on one with AVX-512."""

RowMap = Callable[[Tensor], Tensor]
"""Rows [T, in] to rows [T, out], each by itself: a norm, a linear map, a feed-forward of any kind."""

ACTIVATIONS: Mapping[str, RowMap] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}
"""By the names of Hugging Face."""

WIDENED_ITEMS = 1 << 19  # 2 MB in float32: of 1, 2 and 4 the fastest for one row and for 64


class TokenRows(Protocol):
    """An embedding of `shape` (vocabulary, E) that gives rows of `dtype`: int64 tokens [T] to [T, E]."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    def __call__(self, tokens_T: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """`weight` [vocabulary, E]; rows are multiplied by `scale`, a number that `dtype`, their own type, can hold."""

    weight: Tensor
    dtype: torch.dtype
    scale: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.weight.shape
        return rows, columns

    def __call__(self, tokens_T: Tensor) -> Tensor:
        hidden_TE = functional.embedding(tokens_T, self.weight).to(self.dtype)
        return hidden_TE if self.scale == 1.0 else hidden_TE.mul_(self.scale)


@dataclass(frozen=True, slots=True, eq=False)
class RmsNorm:
    """Root-mean-square norm (Zhang and Sennrich 2019), in float32 inside. `weight` [E]."""

    weight: Tensor
    eps: float

    def __call__(self, x_TE: Tensor) -> Tensor:
        return functional.rms_norm(x_TE, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True, slots=True, eq=False)
class WideRmsNorm:
    """The same with a weight in float32, whatever type the rows have: they are rounded once, behind the product."""

    weight: Tensor
    eps: float

    def __call__(self, x_TE: Tensor) -> Tensor:
        return functional.rms_norm(x_TE.float(), self.weight.shape, self.weight, self.eps).to(x_TE.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class LayerNorm:
    """Layer norm (Ba, Kiros and Hinton 2016). `weight`, `bias` [E]."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x_TE: Tensor) -> Tensor:
        return functional.layer_norm(x_TE, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorm:
    """RMS norm of every head by itself, computed in the type of `weight` [H, D]: a row for each head."""

    weight: Tensor
    eps: float

    def __call__(self, x_THD: Tensor) -> Tensor:
        weight = self.weight
        return (
            functional.rms_norm(x_THD.to(weight.dtype), weight.shape[1:], None, self.eps).mul_(weight).to(x_THD.dtype)
        )


def _product(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    if not (1 < len(x_TI) <= _FEW_ROWS and weight_OI.dtype is torch.float32 and weight_OI.is_cpu):
        return functional.linear(x_TI, weight_OI, bias_O)
    if bias_O is None:
        return torch.mm(weight_OI, x_TI.t()).t().contiguous()
    return torch.addmm(bias_O[:, None], weight_OI, x_TI.t()).t().contiguous()


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """`weight` [out, in], `bias` [out] or None."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x_TI: Tensor) -> Tensor:
        return _product(x_TI, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class WidenedLinear:
    """The same where `weight` has fewer bits than the rows: it is widened at each call, some of its rows at a time.

    A piece is widened into the processor's cache and used there, so that memory sends only the narrow bytes.
    """

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x_TI: Tensor) -> Tensor:
        rows, columns = self.weight.shape
        step = max(1, WIDENED_ITEMS // columns)
        wide_SI = x_TI.new_empty(min(step, rows), columns)
        out_TO = x_TI.new_empty(*x_TI.shape[:-1], rows)
        for start in range(0, rows, step):
            part = self.weight[start : start + step]
            out_TO[..., start : start + step] = _product(x_TI, wide_SI[: len(part)].copy_(part))
        return out_TO if self.bias is None else out_TO.add_(self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class HeadLinear:
    """A linear map for each head: rows [T, heads, in] to [T, heads, out]. `weight` [heads, in, out]."""

    weight: Tensor

    def __call__(self, x_THI: Tensor) -> Tensor:
        return torch.bmm(x_THI.transpose(0, 1), self.weight).transpose(0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class NarrowLinear:
    """Two linear maps as one of a low rank, with a norm between them."""

    down: RowMap
    norm: RowMap
    up: RowMap

    def __call__(self, x_TI: Tensor) -> Tensor:
        return self.up(self.norm(self.down(x_TI)))


@dataclass(frozen=True, slots=True, eq=False)
class GatedFeedForward:
    """The gated feed-forward (Shazeer 2020): down(activation(gate(x)) * up(x)); gate and up are one product.

    `native_gate`: what makes rows of both what goes down, in the place of `activation`.
    """

    gate_up: RowMap
    down: RowMap
    activation: RowMap
    native_gate: RowMap | None = None

    def __call__(self, x_TE: Tensor) -> Tensor:
        if self.native_gate is not None:
            return self.down(self.native_gate(self.gate_up(x_TE)))
        gate, up = self.gate_up(x_TE).chunk(2, dim=-1)
        return self.down(self.activation(gate).mul_(up))


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """Logits in float32; with `softcap` they come as `softcap * tanh(logit / softcap)`."""

    linear: RowMap
    softcap: float = 0.0

    def __call__(self, hidden_RE: Tensor) -> Tensor:
        logits = self.linear(hidden_RE).float()
        return logits.div_(self.softcap).tanh_().mul_(self.softcap) if self.softcap else logits
