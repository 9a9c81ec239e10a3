"""The paged KV pool and the backends that attend over it, one a layer group.

The runner plans here once a step; the model's layers come through `attend`. Block ids of all groups come from one
pool: KV tensor j serves the j-th layer of every group, so a block costs the same whichever group holds it.

INVARIANT: a layer's keys and values are in their slots before it attends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from asyncpage.backends.contract import (
    AttentionBackend,
    AttentionSpec,
    Batch,
    DeviceInfo,
    KVLayout,
    LayerParams,
    Limits,
)
from asyncpage.backends.memory import allocate_kv
from asyncpage.errors import ModelError
from asyncpage.executor.host_slots import HostSlots, SlotPart
from asyncpage.kernels.stack import AttentionCalls
from asyncpage.messages import Int32


def shared_layout(backend: type[AttentionBackend[Any]], specs: Sequence[AttentionSpec], device: DeviceInfo) -> KVLayout:
    """The one layout that all groups' KV tensors have.

    Errors: `ModelError` when groups differ in it, because their blocks could not come from one pool.
    """
    layouts = [backend.kv_layout(spec, device) for spec in specs]
    for layout in layouts[1:]:
        if layout != layouts[0]:
            raise ModelError(
                f"layer groups with different KV shapes ({layouts[0].shape} and {layout.shape}) cannot share one pool; "
                "this version does not run such a model"
            )
    return layouts[0]


class PagedAttention:
    """Attention of all layers over one pool of `blocks` blocks.

    `specs`: one a group; `layer_groups`, `layer_slots`: a layer's group and its KV tensor; `params`: one a layer.
    `arena_fd`: the host arena that blocks can be saved to, None for none; `slot_part`: where in a slot these lie.
    """

    def __init__(
        self,
        backend: type[AttentionBackend[Any]],
        specs: Sequence[AttentionSpec],
        layer_groups: Sequence[int],
        layer_slots: Sequence[int],
        params: Sequence[LayerParams],
        device: DeviceInfo,
        limits: Limits,
        blocks: int,
        arena_fd: int | None = None,
        slot_part: SlotPart | None = None,
    ) -> None:
        self.device = torch.device(device.torch_device)
        self._backends = [backend(spec, device, limits) for spec in specs]
        layout = shared_layout(backend, specs, device)
        self._pool = [allocate_kv(layout, blocks, device) for _ in range(max(layer_slots) + 1)]
        self._layers = [
            (group, self._pool[slot], of_layer)
            for group, slot, of_layer in zip(layer_groups, layer_slots, params, strict=True)
        ]
        self._host = HostSlots(arena_fd, self._pool, layout, slot_part)
        scratch = max(one.workspace_bytes(limits) for one in self._backends)
        # Each has its own: a plan may keep something there until the last of its layers has run.
        self._workspaces = [torch.empty(scratch, dtype=torch.uint8, device=self.device) for _ in self._backends]
        self._plans: list[Any] = [None] * len(self._backends)

    def watch(self, put: Callable[[str, Any], Any]) -> None:
        """For whoever measures: `put(name, backend)` gives what to use in each backend's place."""
        self._backends = [put("attention", backend) for backend in self._backends]

    def plan(self, batches: Sequence[Batch]) -> None:
        """Prepare a step: one batch a group."""
        for group, batch in enumerate(batches):
            self._plans[group] = self._backends[group].plan(batch, self._workspaces[group])

    def attend(self, layer: int, q_THD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor) -> torch.Tensor:
        """Store the layer's keys and values and attend from its queries: [T, q_heads, v_head_dim]."""
        group, kv, params = self._layers[layer]
        backend, plan = self._backends[group], self._plans[group]
        backend.write_kv(k_TGD, v_TGD, kv, plan, params)
        out_THD = torch.empty((*q_THD.shape[:2], v_TGD.shape[2]), dtype=q_THD.dtype, device=q_THD.device)
        backend.run(q_THD, kv, out_THD, plan, params)
        return out_THD

    def calls(self, layer: int) -> AttentionCalls | None:
        """A layer's attention as functions; None where its backend has none."""
        group, kv, params = self._layers[layer]
        calls_of = getattr(self._backends[group], "calls", None)
        found: AttentionCalls | None = None if calls_of is None else calls_of(kv, params)
        return found

    def copy_tokens(self, copies_C3: Int32) -> None:
        """Copy the first tokens of blocks, (source, destination, tokens), in every KV tensor."""
        copies = torch.from_numpy(copies_C3.astype("int64")).to(self.device)
        for kv in self._pool:
            self._backends[0].copy_tokens(kv, copies)

    def save_blocks(self, saves_S2: Int32) -> None:
        """Copy blocks to host slots, (block, slot). Errors: `ProtocolError` for a slot that is not there."""
        self._host.save(saves_S2)

    def load_blocks(self, loads_L2: Int32) -> None:
        """Copy host slots to blocks, (slot, block). Errors: `ProtocolError` for a slot that is not there."""
        self._host.load(loads_L2)

    def close(self) -> None:
        """Let go of the pool."""
        self._host.close()
        self._pool.clear()
        self._layers.clear()
