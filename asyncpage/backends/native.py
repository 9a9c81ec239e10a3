"""Attention on a CPU by native code: blocks are read where they lie, and sums have one order.

Work is shared by queries and key heads, and along the keys where these are few. All arithmetic is float32, whatever
the cache holds; queries of another type are widened.

INVARIANT: a query's output is made of its own sequence's tokens up to it, bit for bit, whatever is beside it in the
step and however many tokens of its sequence come with it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, empty, float32

from asyncpage.backends.contract import (
    AttentionSpec,
    Batch,
    DeviceInfo,
    GraphSupport,
    KVLayout,
    LayerParams,
    Limits,
    PlanSlot,
)
from asyncpage.backends.spec_kinds import cpu_refusals, sides
from asyncpage.errors import ExecutorError
from asyncpage.kernels.attention import KV_KINDS, Group, LayerCall, NativeAttention, StepPlan
from asyncpage.kernels.loaded import Library, current_library, lack
from asyncpage.kernels.stack import AttentionCalls


@dataclass(frozen=True, slots=True, eq=False)
class NativePlan:
    """A step of so many `tokens`. `held`: what its addresses are of."""

    tokens: int
    held: tuple[Any, ...]


class NativeBackend:
    """Native attention over blocks in place, float32 arithmetic, one order of sums."""

    api: ClassVar[int] = 2
    name: ClassVar[str] = "native"
    graph: ClassVar[GraphSupport] = GraphSupport.NEVER

    @classmethod
    def unsupported(cls, spec: AttentionSpec, device: DeviceInfo) -> list[str]:
        """Refuses what no CPU backend serves, and machines that native code cannot be built on."""
        reasons = cpu_refusals(spec, device)
        if device.kind == "cpu" and (lacking := lack()):
            reasons.append(f"needs native code: {lacking}")
        return reasons

    @classmethod
    def kv_layout(cls, spec: AttentionSpec, device: DeviceInfo) -> KVLayout:
        """What a block has lies in one piece: keys of each head, then values of each head."""
        return KVLayout((-1, sides(spec), spec.kv_heads, spec.block_size, spec.head_dim), spec.kv_dtype)

    def __init__(self, spec: AttentionSpec, device: DeviceInfo, limits: Limits) -> None:
        library = current_library()
        if not isinstance(library, Library):
            raise ExecutorError(f"there is no native code: {library}")
        self._spec = spec
        self._code = NativeAttention(library)
        self._step = StepPlan()
        self._group = Group(
            q_heads=spec.q_heads,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            v_head_dim=spec.v_head_dim,
            block_size=spec.block_size,
            window=spec.window,
            kv=KV_KINDS[spec.kv_dtype],
            is_latent=spec.kind == "mla",
            threads=library.threads,
            softcap=spec.softcap,
        )

    def workspace_bytes(self, limits: Limits) -> int:
        """The list of a step's pieces, what threads need for one piece each, and results that wait for one another."""
        return int(self._code.workspace_bytes(self._group, limits.max_seqs, limits.max_tokens))

    def plan(self, batch: Batch, workspace: Tensor, slot: PlanSlot | None = None) -> NativePlan:
        """Cut the step into pieces of work. Errors: `ExecutorError` for a tree mask."""
        if batch.mask is not None:
            raise ExecutorError("the native attention backend takes no tree mask; run without tree drafts")
        starts, lengths = batch.cu_q.contiguous(), batch.kv_len.contiguous()
        table, slots = batch.block_table.contiguous(), batch.slots.contiguous()
        step = self._step
        step.sequences, step.tokens, step.table_stride = batch.n_seqs, len(slots), table.shape[1]
        step.starts, step.lengths = starts.data_ptr(), lengths.data_ptr()
        step.table, step.slots = table.data_ptr(), slots.data_ptr()
        step.workspace, step.workspace_bytes = workspace.data_ptr(), workspace.nbytes
        if self._code.plan(self._group, step):
            raise ExecutorError(
                f"a step of {batch.n_seqs} sequences and {batch.n_tokens} tokens is beyond the limits that attention "
                "was made for"
            )
        return NativePlan(batch.n_tokens, (starts, lengths, table, slots, workspace))

    def write_kv(self, k: Tensor, v: Tensor, kv: Tensor, plan: NativePlan, params: LayerParams) -> None:
        """Store the step's keys and values, or rows, in their slots."""
        k, v = _rows(k), _rows(v)
        self._code.write(
            self._group, self._step, _layer(kv, params), k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0)
        )

    def run(
        self, q: Tensor, kv: Tensor, out: Tensor, plan: NativePlan, params: LayerParams, lse: Tensor | None = None
    ) -> None:
        """Attend piece by piece."""
        if len(out) > plan.tokens:
            out[plan.tokens :].zero_()
            if lse is not None:
                lse[plan.tokens :].zero_()
        q = _rows(q)
        is_plain = out.dtype == float32 and _is_packed(out)
        wide = out if is_plain else empty(out.shape, dtype=float32)
        self._code.run(
            self._group,
            self._step,
            _layer(kv, params),
            q.data_ptr(),
            q.stride(0),
            wide.data_ptr(),
            wide.stride(0),
            None if lse is None else lse.data_ptr(),
        )
        if not is_plain:
            out[: plan.tokens] = wide[: plan.tokens]

    def calls(self, kv: Tensor, params: LayerParams) -> AttentionCalls:
        """A layer's attention as functions, for a list of operators."""
        layer = _layer(kv, params)
        return AttentionCalls(
            write=self._code.write_address,
            attend=self._code.run_address,
            group=ctypes.addressof(self._group),
            step=ctypes.addressof(self._step),
            layer=ctypes.addressof(layer),
            held=(self, params, layer),
        )

    def copy_tokens(self, kv: Tensor, copies: Tensor) -> None:
        """Read all sources, then write."""
        moves = copies.tolist()
        read = [kv[source, :, :, :count].clone() for source, _, count in moves]
        for (_, destination, count), found in zip(moves, read, strict=True):
            kv[destination, :, :, :count] = found


def _is_packed(x_THD: Tensor) -> bool:
    """Whether a token's heads lie behind one another."""
    return x_THD.stride()[1:] == (x_THD.shape[2], 1)


def _rows(x_THD: Tensor) -> Tensor:
    """The same in float32, packed so."""
    x_THD = x_THD.to(float32)
    return x_THD if _is_packed(x_THD) else x_THD.contiguous()


def _layer(kv: Tensor, params: LayerParams) -> LayerCall:
    return LayerCall(
        kv.data_ptr(),
        params.scale,
        None if params.sinks is None else params.sinks.data_ptr(),
        None if params.slopes is None else params.slopes.data_ptr(),
    )
