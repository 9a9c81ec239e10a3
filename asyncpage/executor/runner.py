"""Loads a model and makes the runner that will execute its steps.

The process's main asks once, with what `Load` says. What can be known to fail is checked before weights are read:
settings first, then memory, then whether any attention backend will do.

INVARIANT: the handshake tells what was really built; two loads with equal fingerprints compute the same thing.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from asyncpage.backends.contract import DeviceInfo, KVLayout, Limits
from asyncpage.backends.device import present_device
from asyncpage.backends.registry import choose
from asyncpage.errors import UsageError
from asyncpage.executor import memory
from asyncpage.executor.attention import PagedAttention, shared_layout
from asyncpage.executor.batch import BatchShape
from asyncpage.executor.encoder_loader import load_encoder
from asyncpage.executor.experts import open_experts
from asyncpage.executor.grids import held_kinds, native_folder, open_grids, without_values
from asyncpage.executor.host_slots import SlotPart
from asyncpage.executor.lora.bank import AdapterBank
from asyncpage.executor.model_runner import ModelRunner
from asyncpage.executor.process import Runner
from asyncpage.executor.speculation.loader import LoadedDraft, load_draft, make_proposer
from asyncpage.executor.speculation.proposer import Proposer
from asyncpage.kernels.loaded import Library, open_library
from asyncpage.machine import read_cores, read_memory
from asyncpage.messages import Handshake, Load
from asyncpage.models.model import Model
from asyncpage.models.registry import build_model, is_encoder, outline_model
from asyncpage.models.stack import stacked
from asyncpage.weights.checkpoint import open_checkpoint


def load_runner(load: Load, proposer: Proposer | None = None) -> Runner:
    """Open the model, build it, choose attention, size and allocate the KV pool; an encoder needs neither of these.

    `proposer`: instead of what the settings name.
    Errors: `ModelError` for the files, `UsageError` for a setting or too little memory, each in one line.
    """
    with ExitStack() as undo:
        runner = _load_runner(load, undo, proposer)
        undo.pop_all()
        return runner


def _load_runner(load: Load, undo: ExitStack, proposer: Proposer | None) -> Runner:
    """`undo`: takes what must be undone when this does not come to its end."""
    started = time.perf_counter()
    settings = load.settings
    device, ranks = present_device(settings["device"]), settings.get("expert_parallel_size", 1)
    threads = settings["cpu_threads"] or max(1, int(read_cores()) // ranks)
    if device.kind == "cpu":
        torch.set_num_threads(threads)
    dtype = dtype_on(device, "float32" if settings.get("exact", False) else settings["dtype"])
    torch_dtype = getattr(torch, dtype)
    held = _held(settings.get("weights_dtype", "auto"), dtype)
    torch_held = getattr(torch, held)
    kv_dtype = dtype if settings["kv_cache_dtype"] == "auto" else settings["kv_cache_dtype"]
    settled = {
        "dtype": dtype,
        "held_dtype": held,
        "device": "cpu" if device.kind == "cpu" else "cuda",
        "cpu_threads": threads,
    }
    for_ranks = replace(load, settings={**settings, **settled})
    checkpoint = open_checkpoint(Path(settings["model_path"]))
    try:
        if is_encoder(checkpoint.config):
            open_experts(for_ranks, {}, device)
            return load_encoder(load, checkpoint, device, dtype)
        library = open_library(native_folder(settings), threads) if device.kind == "cpu" else None
        grids = open_grids(settings, checkpoint, device, dtype)
        outline = outline_model(checkpoint.config, torch_dtype, held=torch_held, grids=without_values(grids))
        specs = outline.model.specs(kv_dtype, settings["block_size"])
        backend = choose(settings["attention_backend"], specs, device)
        layout = shared_layout(backend, specs, device)
        draft = load_draft(settings, outline.model, checkpoint.fingerprint, dtype, held, kv_dtype, device)
        demand = _demand(settings, outline.model, layout, draft)
        if device.kind == "cpu":  # where all ranks take of the same memory
            memory.check_model(outline.weight_bytes, demand, available=read_memory().available)
        experts = open_experts(for_ranks, outline.experts, device)
        undo.callback(experts.close)
        adapters = _adapter_bank(settings, torch_dtype, device)
        model = build_model(
            checkpoint.config,
            lambda name: checkpoint.tensor(name, torch_dtype),
            torch_dtype,
            device.torch_device,
            adapt=None if adapters is None else adapters.adapt,
            experts=experts.host,
            held=torch_held,
            names=checkpoint.names,
            grids=grids,
        )
        fingerprint, stored_as = checkpoint.fingerprint, checkpoint.stored_as
        held_as = () if grids is None else held_kinds(checkpoint, settings)
        # Variants of native code round alike and sum in other orders.
        arithmetic = (held, *held_as, library.variant.name) if held_as and isinstance(library, Library) else (held,)
    finally:
        checkpoint.close()
    experts.connect()
    available = _available(device)
    if device.kind == "cpu":
        # What is not taken yet, of the host arena and by the other ranks' work.
        available -= settings.get("kv_arena_bytes", 0) + memory.WORKING_BYTES * (ranks - 1)
    if adapters is not None:
        available -= _room_for(adapters, available)
    if draft is not None:
        available -= draft.bytes_beside(demand.max_num_seqs)
    blocks = memory.pool_blocks(demand, max(0, available - memory.WORKING_BYTES))
    limits = Limits(
        max_seqs=demand.max_num_seqs, max_tokens=settings["max_num_batched_tokens"], max_kv=demand.max_model_len
    )
    attention = PagedAttention(
        backend,
        specs,
        model.layer_groups,
        model.layer_slots,
        model.layer_params,
        device,
        limits,
        blocks,
        arena_fd=settings.get("kv_arena_fd"),
        slot_part=SlotPart(0, demand.block_bytes),
    )
    handshake = Handshake(
        fingerprint=_identity(fingerprint, dtype, " ".join(arithmetic), layout, draft),
        pid=os.getpid(),
        rank=load.rank,
        blocks=blocks,
        block_size=demand.block_size,
        groups=model.groups,
        max_model_len=demand.max_model_len,
        vocab_size=model.vocab_size,
        dtype=dtype,
        kv_dtype=kv_dtype,
        device=str(device),
        attention_backend=backend.name,
        load_ms=int((time.perf_counter() - started) * 1000),
        kv_bytes=blocks * demand.block_bytes,
        hidden_size=model.hidden_size,
        linears=() if adapters is None else adapters.linears,
        weight_bytes=outline.weight_bytes,
        stored_as=stored_as,
        weights_dtype=held,
        held_as=held_as,
        native=library.variant.name if isinstance(library, Library) else "",
        lack=library if isinstance(library, str) else "",
        family=outline.family,
    )
    shape = BatchShape(
        groups=len(model.groups),
        block_size=demand.block_size,
        blocks=blocks,
        max_model_len=demand.max_model_len,
        max_rows=demand.max_num_seqs,
        max_tokens=limits.max_tokens,
        max_drafts=settings.get("most_drafts", 0),
    )
    beside = SlotPart(demand.block_bytes - (0 if draft is None else draft.block_bytes), demand.block_bytes)
    proposer = proposer or make_proposer(settings, draft, shape, limits, device, model, beside)
    model = stacked(model, attention.calls)
    return ModelRunner(handshake, model, attention, shape, experts, settings["grammar_backend"], adapters, proposer)


def _adapter_bank(settings: Mapping[str, Any], dtype: torch.dtype, device: DeviceInfo) -> AdapterBank | None:
    """None where no adapters are to be run."""
    slots = settings.get("max_loras", 0)
    if not slots:
        return None
    return AdapterBank(
        slots=slots,
        most_read=settings["max_cpu_loras"],
        max_rank=settings["max_lora_rank"],
        dtype=dtype,
        device=device.torch_device,
    )


def _room_for(adapters: AdapterBank, available: int) -> int:
    """Bytes to leave for the largest adapters. Errors: `UsageError` when there are fewer, or nothing to adapt."""
    if not adapters.linears:
        raise UsageError("this model has no linear maps that adapters could change; leave out --enable-lora and --lora")
    if adapters.most_bytes > available:
        raise UsageError(
            f"too little memory: adapters may take {memory.gib(adapters.most_bytes)} beside the weights, "
            f"{memory.gib(available)} are available; lower --max-lora-rank, --max-cpu-loras or --max-loras"
        )
    return adapters.most_bytes


def dtype_on(device: DeviceInfo, asked: str) -> str:
    """`auto` is float32 on a CPU, where narrower products are slower, and bfloat16 on an accelerator."""
    if asked != "auto":
        return asked
    return "float32" if device.kind == "cpu" else "bfloat16"


def _held(asked: str, dtype: str) -> str:
    """`auto` is what is computed in. Errors: `UsageError` for a type that is not narrower: it would gain nothing."""
    if asked in ("auto", dtype):
        return dtype
    if dtype != "float32":
        raise UsageError(
            f"--weights-dtype {asked} is for weights that take less than --dtype, which is {dtype}; leave it out, or "
            "give --dtype float32"
        )
    return asked


def _demand(
    settings: Mapping[str, Any], model: Model, layout: KVLayout, draft: LoadedDraft | None
) -> memory.PoolDemand:
    """What the pool must hold; without `max_model_len`, an explicit pool decides the longest request."""
    asked = settings["max_model_len"]
    if asked is not None and asked > model.max_model_len:
        raise UsageError(
            f"--max-model-len {asked} is more than the {model.max_model_len} positions of this model; "
            "lower it or leave it out"
        )
    if layout.block_sizes and settings["block_size"] not in layout.block_sizes:
        raise UsageError(
            f"--block-size {settings['block_size']} does not fit this attention backend; "
            f"it takes {', '.join(map(str, layout.block_sizes))}"
        )
    demand = memory.PoolDemand(
        block_bytes=layout.block_bytes * (max(model.layer_slots) + 1) + (0 if draft is None else draft.block_bytes),
        block_size=settings["block_size"],
        groups=len(model.groups),
        max_model_len=asked or model.max_model_len,
        max_num_seqs=settings["max_num_seqs"],
        explicit_blocks=settings["num_kv_blocks"],
        explicit_bytes=settings["kv_cache_bytes"],
    )
    return demand if asked is not None else demand.shortened()


def _available(device: DeviceInfo) -> int:
    if device.kind == "cpu":
        return read_memory().available
    free, _ = torch.cuda.mem_get_info(device.index)
    return int(free)


def _identity(weights: str, dtype: str, held: str, layout: KVLayout, draft: LoadedDraft | None) -> str:
    """One word for what a successor must share: weights, arithmetic and the KV layout, a draft model's among it."""
    parts = [weights, dtype, held, layout.dtype, str(layout.shape), str(layout.stride_order)]
    if draft is not None:
        parts += [draft.fingerprint, draft.layout.dtype, str(draft.layout.shape), str(draft.layout.stride_order)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
