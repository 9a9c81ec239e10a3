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
from asyncpage.executor.grids import open_grids, without_values
from asyncpage.executor.host_slots import SlotPart
from asyncpage.executor.speculation.draft_head import DraftHead
from asyncpage.executor.speculation.draft_model import DraftModel
from asyncpage.executor.speculation.head_file import read_head
from asyncpage.executor.speculation.head_proposer import HeadProposer
from asyncpage.executor.speculation.in_turn import InTurn
from asyncpage.executor.speculation.ngram import NgramProposer
from asyncpage.executor.speculation.proposer import Proposer
from asyncpage.machine import read_memory
from asyncpage.messages import LayerGroup
from asyncpage.models.model import Model
from asyncpage.models.registry import build_model, is_encoder, outline_model
from asyncpage.models.stack import stacked
from asyncpage.weights.checkpoint import open_checkpoint


@dataclass(frozen=True, slots=True, eq=False)
class LoadedDraft:
    """A draft model or a head, without its KV. `tables`: for each of its layer groups, the great model's whose blocks
    it uses."""

    model: Model | DraftHead
    fingerprint: str
    backend: type[AttentionBackend[Any]]
    specs: tuple[AttentionSpec, ...]
    layout: KVLayout
    tables: tuple[int, ...]

    def bytes_beside(self, rows: int) -> int:
        """What it takes for so many rows beside its weights and its KV."""
        return self.model.state_bytes * rows if isinstance(self.model, DraftHead) else 0

    @property
    def block_bytes(self) -> int:
        """What one block takes in its KV: a tensor a layer, as groups may share a table."""
        return self.layout.block_bytes * len(self.model.layer_groups)


def load_draft(
    settings: Mapping[str, Any],
    great: Model,
    fingerprint: str,
    dtype: str,
    held: str,
    kv_dtype: str,
    device: DeviceInfo,
) -> LoadedDraft | None:
    """What the settings name, None for none. `great`: the model that verifies, perhaps without weights yet.

    `fingerprint`: of its files. `held`: its weights' type, and a draft model's; a head is held in `dtype`. Errors:
    `ModelError` for the files, `UsageError` when it does not go with the great one or does not fit.
    """
    model: Model | DraftHead
    match settings.get("speculation", "off"):
        case "draft":
            flag, path = "--draft-model", Path(settings["draft_model_path"])
            model, own = _load_model(path, settings, dtype, held, device)
        case "head":
            flag, path = "--draft-head", Path(settings["draft_head_path"])
            model, own = read_head(path, great, fingerprint, getattr(torch, dtype), device.torch_device)
        case _:
            return None
    tables = tuple(_table_for(group, great.groups, f"{flag} {path}") for group in model.groups)
    specs = model.specs(kv_dtype, settings["block_size"])
    backend = choose(settings["attention_backend"], specs, device)
    layout = shared_layout(backend, specs, device)
    if layout.block_sizes and settings["block_size"] not in layout.block_sizes:
        raise UsageError(
            f"--block-size {settings['block_size']} does not fit the attention backend of {flag}; "
            f"it takes {', '.join(map(str, layout.block_sizes))}"
        )
    return LoadedDraft(model, own, backend, specs, layout, tables)


def make_proposer(
    settings: Mapping[str, Any],
    draft: LoadedDraft | None,
    shape: BatchShape,
    limits: Limits,
    device: DeviceInfo,
    great: Model,
    slot_part: SlotPart | None,
) -> Proposer | None:
    """None without speculation. `slot_part`: where the draft's KV lies in a slot of the host arena."""
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
        if isinstance(draft.model, DraftHead):
            head = HeadProposer(draft.model, great.embed, attention, shape, draft.tables[0])
            shortest, longest = settings["ngram_lengths"]
            return InTurn(NgramProposer(shortest, longest), head) if shortest else head
        return DraftModel(stacked(draft.model, attention.calls), attention, shape, draft.tables, great.vocab_size)
    match settings.get("speculation", "off"):
        case "off":
            return None
        case "ngram":
            return NgramProposer(*settings["ngram_lengths"])
        case other:
            raise UsageError(f"--speculation {other} is not known; it is one of off, ngram, draft, head")


def _load_model(
    path: Path, settings: Mapping[str, Any], dtype: str, held: str, device: DeviceInfo
) -> tuple[Model, str]:
    """The draft model in `path`, and its fingerprint."""
    torch_dtype, torch_held = getattr(torch, dtype), getattr(torch, held)
    checkpoint = open_checkpoint(path)
    try:
        if is_encoder(checkpoint.config):
            raise UsageError(f"--draft-model {path} is an encoder, which makes no tokens; name a decoder")
        grids = open_grids(settings, checkpoint, device, dtype)
        if device.kind == "cpu":
            outline = outline_model(checkpoint.config, torch_dtype, held=torch_held, grids=without_values(grids))
            memory.check_weights(outline.weight_bytes, available=read_memory().available)
        model = build_model(
            checkpoint.config,
            lambda name: checkpoint.tensor(name, torch_dtype),
            torch_dtype,
            device.torch_device,
            held=torch_held,
            names=checkpoint.names,
            grids=grids,
        )
        return model, checkpoint.fingerprint if grids is None else f"{checkpoint.fingerprint} on its grids"
    finally:
        checkpoint.close()


def _table_for(group: LayerGroup, groups: Sequence[LayerGroup], what: str) -> int:
    """The great model's group that keeps a block for as long as this one looks at it."""
    for index, other in enumerate(groups):
        if other.kind == "full" or (group.kind == "window" and other.window >= group.window):
            return index
    raise UsageError(
        f"{what} looks further back than every layer of the model, which keeps blocks of its own windows only; "
        "name one with windows no greater"
    )
