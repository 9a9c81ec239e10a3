"""Loads an encoder and makes the runner that will execute its steps.

`load_runner` calls it for a checkpoint whose config names one. Blocks are counted as for a decoder, so that the
control plane needs no other rules, but nothing is kept in them.

INVARIANT: a setting of the KV cache that was given is refused by name: there is none to which it could apply.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from asyncpage.backends.contract import DeviceInfo
from asyncpage.errors import UsageError
from asyncpage.executor import memory
from asyncpage.executor.batch import BatchShape
from asyncpage.executor.encoder_runner import EncoderRunner
from asyncpage.formats.sentence_model import read_sentence_model
from asyncpage.machine import read_memory
from asyncpage.messages import Handshake, LayerGroup, Load
from asyncpage.models.registry import build_encoder, outline_encoder
from asyncpage.weights.checkpoint import Checkpoint

_KV_SETTINGS: Mapping[str, Any] = {
    "kv_cache_bytes": None,
    "num_kv_blocks": None,
    "kv_cache_dtype": "auto",
    "attention_backend": "auto",
}


def load_encoder(load: Load, checkpoint: Checkpoint, device: DeviceInfo, dtype: str) -> EncoderRunner:
    """Errors: `ModelError` for the files, `UsageError` for a setting or too little memory, each in one line."""
    started = time.perf_counter()
    settings = load.settings
    for name, neutral in _KV_SETTINGS.items():
        if settings[name] != neutral:
            raise UsageError(f"an encoder keeps no KV cache, so --{name.replace('_', '-')} means nothing; leave it out")
    if settings.get("kv_arena_fd") is not None:
        raise UsageError("an encoder keeps no KV cache, so --kv-offload-gb and --kv-dir mean nothing; leave them out")
    if settings.get("max_loras"):
        raise UsageError("an encoder runs no adapters; leave out --enable-lora, --lora and --lora-dir")
    if settings.get("speculation", "off") != "off":
        raise UsageError(
            "an encoder makes no tokens that could be guessed, so --speculation means nothing; leave it out"
        )
    if settings.get("weights_dtype", "auto") not in ("auto", dtype):
        raise UsageError("--weights-dtype is for decoders; an encoder's weights are held in --dtype; leave it out")
    if settings.get("quantization", "none") != "none":
        raise UsageError("--quantization is for decoders; leave it out")
    torch_dtype = getattr(torch, dtype)
    outline = outline_encoder(checkpoint.config, torch_dtype)
    if device.kind == "cpu":
        memory.check_weights(outline.weight_bytes, available=read_memory().available)
    model = build_encoder(
        checkpoint.config, lambda name: checkpoint.tensor(name, torch_dtype), torch_dtype, device.torch_device
    )
    longest = min(model.max_model_len, read_sentence_model(Path(settings["model_path"])).max_tokens or 1 << 30)
    asked = settings["max_model_len"]
    if asked is not None and asked > longest:
        raise UsageError(
            f"--max-model-len {asked} is more than the {longest} tokens that this model takes; lower it or leave it out"
        )
    longest = asked or longest
    block_size = settings["block_size"]
    blocks = 1 + settings["max_num_seqs"] * -(-longest // block_size)
    handshake = Handshake(
        fingerprint=hashlib.sha256(f"{checkpoint.fingerprint}\0{dtype}\0encoder".encode()).hexdigest(),
        pid=os.getpid(),
        rank=load.rank,
        blocks=blocks,
        block_size=block_size,
        groups=(LayerGroup("full", 0, 1),),
        max_model_len=longest,
        vocab_size=model.vocab_size,
        dtype=dtype,
        kv_dtype="none",
        device=str(device),
        attention_backend="none",
        load_ms=int((time.perf_counter() - started) * 1000),
        kv_bytes=0,
        kind="encoder",
        hidden_size=model.hidden_size,
        weight_bytes=outline.weight_bytes,
        family=outline.family,
        stored_as=checkpoint.stored_as,
        weights_dtype=dtype,
    )
    shape = BatchShape(
        groups=1,
        block_size=block_size,
        blocks=blocks,
        max_model_len=longest,
        max_rows=settings["max_num_seqs"],
        max_tokens=settings["max_num_batched_tokens"],
    )
    return EncoderRunner(handshake, model, shape, torch.device(device.torch_device))
