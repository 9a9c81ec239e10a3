"""Makes what drafts, from the settings. The loader of the runner asks: before the KV pool has a size, and when it has.

INVARIANT: what the settings name is made, or refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from asyncpage.backends.contract import AttentionBackend, AttentionSpec, DeviceInfo, KVLayout, Limits
from asyncpage.backends.registry import choose
from asyncpage.errors import UsageError
from asyncpage.executor import memory
from asyncpage.executor.attention import PagedAttention, shared_layout
from asyncpage.executor.batch import BatchShape
from asyncpage.executor.host_slots import SlotPart
from asyncpage.executor.speculation.draft_model import DraftModel
from asyncpage.executor.speculation.ngram import NgramProposer
from asyncpage.executor.speculation.proposer import Proposer
from asyncpage.machine import read_memory
from asyncpage.messages import LayerGroup
from asyncpage.models.model import Model
from asyncpage.models.registry import build_model, is_encoder, outline_model
from asyncpage.weights.checkpoint import open_checkpoint


@dataclass(frozen=True, slots=True, eq=False)
class LoadedDraft:
    """A draft model without its KV. `tables`: for each of its layer groups, the great model's whose blocks it uses."""

    model: Model
    fingerprint: str
    backend: type[AttentionBackend[Any]]
    specs: tuple[AttentionSpec, ...]
    layout: KVLayout
    tables: tuple[int, ...]

    @property
    def block_bytes(self) -> int:
        """What one block takes in its KV: a tensor a layer, as groups may share a table."""
        return self.layout.block_bytes * len(self.model.layer_groups)


def load_draft(
    settings: Mapping[str, Any], groups: Sequence[LayerGroup], dtype: str, held: str, kv_dtype: str, device: DeviceInfo
) -> LoadedDraft | None:
    """The draft model that the settings name, None for none. `groups`: the great model's. `held`: its weights' type.

    Errors: `ModelError` for its files, `UsageError` when it does not go with the great one or does not fit.
    """
    if settings.get("speculation", "off") != "draft":
        return None
    path = Path(settings["draft_model_path"])
    checkpoint = open_checkpoint(path)
    try:
        if is_encoder(checkpoint.config):
            raise UsageError(f"--draft-model {path} is an encoder, which makes no tokens; name a decoder")
        torch_dtype, torch_held = getattr(torch, dtype), getattr(torch, held)
        if device.kind == "cpu":
            outline = outline_model(checkpoint.config, torch_dtype, held=torch_held)
            memory.check_weights(outline.weight_bytes, available=read_memory().available)
        model = build_model(
            checkpoint.config,
            lambda name: checkpoint.tensor(name, torch_dtype),
            torch_dtype,
            device.torch_device,
            held=torch_held,
            names=checkpoint.names,
        )
        fingerprint = checkpoint.fingerprint
    finally:
        checkpoint.close()
    tables = tuple(_table_for(group, groups, path) for group in model.groups)
    specs = model.specs(kv_dtype, settings["block_size"])
    backend = choose(settings["attention_backend"], specs, device)
    layout = shared_layout(backend, specs, device)
    if layout.block_sizes and settings["block_size"] not in layout.block_sizes:
        raise UsageError(
            f"--block-size {settings['block_size']} does not fit the draft model's attention backend; "
            f"it takes {', '.join(map(str, layout.block_sizes))}"
        )
    return LoadedDraft(model, fingerprint, backend, specs, layout, tables)


def make_proposer(
    settings: Mapping[str, Any],
    draft: LoadedDraft | None,
    shape: BatchShape,
    limits: Limits,
    device: DeviceInfo,
    vocab_size: int,
    slot_part: SlotPart | None,
) -> Proposer | None:
    """None without speculation. `slot_part`: where the draft model's KV lies in a slot of the host arena."""
    if draft is not None:
        attention = PagedAttention(
            draft.backend,
            draft.specs,
            draft.model.layer_groups,
            range(len(draft.model.layer_groups)),
            draft.model.layer_params,
            device,
            Limits(max_seqs=limits.max_seqs, max_tokens=limits.max_tokens + limits.max_seqs, max_kv=limits.max_kv),
            shape.blocks,
            arena_fd=settings.get("kv_arena_fd"),
            slot_part=slot_part,
        )
        return DraftModel(draft.model, attention, shape, draft.tables, vocab_size)
    match settings.get("speculation", "off"):
        case "off":
            return None
        case "ngram":
            return NgramProposer(*settings["ngram_lengths"])
        case other:
            raise UsageError(f"--speculation {other} is not known; it is one of off, ngram, draft")


def _table_for(group: LayerGroup, groups: Sequence[LayerGroup], path: Path) -> int:
    """The great model's group that keeps a block for as long as this one looks at it."""
    for index, other in enumerate(groups):
        if other.kind == "full" or (group.kind == "window" and other.window >= group.window):
            return index
    raise UsageError(
        f"--draft-model {path} looks further back than every layer of the model, which keeps blocks of its own windows "
        "only; name a draft model with windows no greater"
    )
