"""The attention contract, version 2: what the executor asks of a backend and what it hands over.

The executor chooses a backend (`registry`), asks for its KV layout, allocates one KV tensor a layer, plans once a
step on the host and runs once a layer. Readable without torch: dtypes are strings, tensors are named in quotes.

INVARIANT: a backend reads block-table entries only below a sequence's `kv_len` (and inside its window), and writes
only slots that are not -1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

API = 2
"""The contract version that this asyncpage speaks."""

OLDEST_API = 2
"""The oldest that it still serves: version 1 copied whole blocks only (`copy_blocks`)."""

ITEM_BYTES: Mapping[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What one group of layers, that share a KV cache shape and a mask, asks of attention.

    `head_dim` of queries and keys, `v_head_dim` of values; dtypes by torch's name. `window`: tokens a query sees,
    itself included, 0 for all. `softcap`: scores become `softcap * tanh(score / softcap)`, 0 for none.
    `alibi`: each head adds `slope * (key position - query position)`. `sinks`: each head has one more logit in the
    softmax's denominator that brings no value. `need_lse`: `run` must fill `lse`.
    Kind "mla" (multi-head latent attention): the cache has one row of `head_dim` items a token, for all query heads
    (`kv_heads` is 1), and the row's first `v_head_dim` items are its value. Queries come as wide as the row.
    A field that a later contract adds has a neutral default and `metadata={"since": version}`.
    """

    kind: Literal["mha", "mla", "encoder", "cross"]
    q_heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str
    kv_dtype: str
    block_size: int
    kv_scales: Literal["none", "tensor", "head", "token"] = "none"
    window: int = 0
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    causal: bool = True
    need_lse: bool = False

    def asks_beyond(self, api: int) -> tuple[str, ...]:
        """Names of fields that contract `api` does not know and that ask for something here."""
        return tuple(
            item.name
            for item in fields(self)
            if item.metadata.get("since", 1) > api and getattr(self, item.name) != item.default
        )


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Where attention would run. `arch`: x86_64, aarch64, sm90, gfx942, ...; `index` among devices of its kind."""

    kind: Literal["cpu", "cuda", "rocm"]
    arch: str
    index: int = 0
    name: str = ""
    memory_bytes: int = 0

    @property
    def torch_device(self) -> str:
        """The name torch knows it by (ROCm devices answer to `cuda` there)."""
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    def __str__(self) -> str:
        return f"{self.kind} ({self.arch})"


@dataclass(frozen=True, slots=True)
class Limits:
    """The greatest batch a backend will be given: sequences, tokens of one step, tokens of one sequence."""

    max_seqs: int
    max_tokens: int
    max_kv: int


@dataclass(frozen=True, slots=True)
class KVLayout:
    """How one layer's KV tensor lies in memory, so that blocks can be copied, moved and offloaded blind.

    `shape`: as the backend indexes it, -1 where the number of blocks stands. `stride_order`: the axes from the
    outermost in memory to the innermost; () is the order of `shape`. `block_sizes`: the tokens a block may hold
    for the kernels, () for any.
    """

    shape: tuple[int, ...]
    dtype: str
    stride_order: tuple[int, ...] = ()
    block_sizes: tuple[int, ...] = ()

    @property
    def block_axis(self) -> int:
        """The axis of `shape` that counts blocks."""
        return self.shape.index(-1)

    @property
    def block_bytes(self) -> int:
        """Bytes that one block takes in one layer, keys and values together."""
        return ITEM_BYTES[self.dtype] * math.prod(n for n in self.shape if n != -1)

    def shape_of(self, blocks: int) -> tuple[int, ...]:
        """The tensor's shape when the pool has this many blocks."""
        return tuple(blocks if n == -1 else n for n in self.shape)

    def strides_of(self, blocks: int) -> tuple[int, ...]:
        """The tensor's strides in items, in the order of `shape`."""
        shape = self.shape_of(blocks)
        strides, step = [0] * len(shape), 1
        for axis in reversed(self.stride_order or range(len(shape))):
            strides[axis] = step
            step *= shape[axis]
        return tuple(strides)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One step as the executor knows it, on the host and on the device.

    `n_seqs`, `n_tokens`: what is real; tensors may be longer (padded to a bucket): a padding sequence has no
    tokens and `kv_len` 0, a padding token has slot -1. Sequence i owns tokens `cu_q[i]` to `cu_q[i + 1]`, which
    are the last of its `kv_len[i]` tokens. `max_q`, `max_kv`: the greatest over sequences.
    `cu_q_host` [n_seqs + 1], `kv_len_host` [n_seqs]: int32 on the host; `cu_q`, `kv_len`: the same on the device.
    `block_table`: int32 [sequences, blocks]; entries beyond a sequence's last block, or before its window, are
    junk. `slots`: int64 [tokens], `block * block_size + offset` where the token's KV goes, -1 for nowhere.
    `shared_prefix`: tokens that all sequences share. `uniform_q`: every sequence has this many tokens, None for
    mixed. `mask`: a packed tree mask, for specs that ask for one (none does in this version).
    """

    n_seqs: int
    n_tokens: int
    max_q: int
    max_kv: int
    cu_q_host: NDArray[np.int32]
    kv_len_host: NDArray[np.int32]
    cu_q: Tensor
    kv_len: Tensor
    block_table: Tensor
    slots: Tensor
    shared_prefix: int = 0
    uniform_q: int | None = None
    mask: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LayerParams:
    """What differs from layer to layer: the score scale, and tensors where the spec asks for them.

    `k_scale`, `v_scale`, `q_scale`: float32 scales of quantised caches. `sinks`, `slopes`: float32 [q_heads].
    """

    scale: float
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    q_scale: Tensor | None = None
    sinks: Tensor | None = None
    slopes: Tensor | None = None


@dataclass(slots=True, eq=False)
class PlanSlot:
    """The persistent buffers of one captured graph's bucket; the backend that fills them owns their names.

    When given to `plan`, the plan is written into `buffers` and `run` reads nothing else, so planning again
    refreshes the captured graph.
    """

    n_seqs: int
    n_tokens: int
    buffers: dict[str, Tensor] = field(default_factory=dict)


class GraphSupport(Enum):
    """Which steps may be captured and replayed: none, one token a sequence, equally many, any."""

    NEVER = "never"
    DECODE = "decode"
    UNIFORM = "uniform"
    ANY = "any"


Plan = TypeVar("Plan")


class AttentionBackend(Protocol[Plan]):
    """One way to compute attention over a paged cache; a class found by entry point.

    `kv` is one layer's tensor of the shape that `kv_layout` names. `q`: [tokens, q_heads, head_dim]; `out`: [tokens,
    q_heads, v_head_dim]; `k`, `v`: [tokens, kv_heads, head_dim] and v_head_dim, in the spec's dtype, last axis
    contiguous. Kind "mla": `k` are the rows, once for all heads in the layout too; `v` is a view of their first items
    and need not be read.

    A backend on a CPU may have `calls(kv, params)` beside these hooks, which gives a layer's `write_kv` and `run` as C
    functions (`kernels.stack.AttentionCalls`): then a list of native operators attends without coming back to Python.
    """

    api: ClassVar[int]
    name: ClassVar[str]
    graph: ClassVar[GraphSupport]

    @classmethod
    def unsupported(cls, spec: AttentionSpec, device: DeviceInfo) -> list[str]:
        """Why this backend cannot serve `spec` on `device`, each reason a phrase to print; [] means it can.

        Answers from facts alone: `device` need not be present.
        """
        ...

    @classmethod
    def kv_layout(cls, spec: AttentionSpec, device: DeviceInfo) -> KVLayout:
        """The layout of one layer's KV tensor."""
        ...

    def __init__(self, spec: AttentionSpec, device: DeviceInfo, limits: Limits) -> None: ...

    def workspace_bytes(self, limits: Limits) -> int:
        """Scratch memory that `plan` and `run` use; the engine owns it, some for each group."""
        ...

    def plan(self, batch: Batch, workspace: Tensor, slot: PlanSlot | None = None) -> Plan:
        """Prepare one step for all layers of the group: host work and copies, never a device synchronisation.

        `workspace`: uint8 [workspace_bytes]. The plan is valid until the next call.
        """
        ...

    def write_kv(self, k: Tensor, v: Tensor, kv: Tensor, plan: Plan, params: LayerParams) -> None:
        """Store the step's keys and values, or rows, in their slots."""
        ...

    def run(
        self, q: Tensor, kv: Tensor, out: Tensor, plan: Plan, params: LayerParams, lse: Tensor | None = None
    ) -> None:
        """Attend from the step's tokens to their sequences' caches, which `write_kv` has already filled.

        Fills `out`, with zeros for padding tokens, and `lse` (float32 [tokens, q_heads], the natural logarithm of
        the softmax's denominator, sinks included) when given.
        """
        ...

    def copy_tokens(self, kv: Tensor, copies: Tensor) -> None:
        """Copy the beginnings of blocks: `copies` int64 [C, 3] of source block, destination block, tokens.

        The first `tokens` slots (1 to all) are copied, the destination's other slots stay as they are. As if every
        source were read before any destination is written; no destination occurs twice.
        """
        ...
