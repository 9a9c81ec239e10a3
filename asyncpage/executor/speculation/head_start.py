"""What a draft head begins with, before it is trained: its shape, the tokens it will know, and first weights.

`scripts/train_draft_head` asks. The layer has the shape of the model's own, and where the model has a plain one begins
as its last: that one already knows the model's states. The rows of its vocabulary are the model's.

INVARIANT: what is made here fits `head_file`'s config, whatever model it is for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asyncpage.errors import ModelError, UsageError
from asyncpage.executor.speculation.draft_head import Embed
from asyncpage.executor.speculation.head_file import FORMAT, VERSION
from asyncpage.models.config import Config
from asyncpage.models.layers import ACTIVATIONS
from asyncpage.models.model import Model
from asyncpage.models.registry import build_model, is_encoder
from asyncpage.weights.checkpoint import Checkpoint, open_checkpoint

_HEAD_DIM, _THETA, _NORM_EPS = 64, 10_000.0, 1e-5  # where the model does not say
_MATRIX_SPREAD = 0.02
_COLUMNS = 1024  # of the model's output that are asked for at a time: a row of it has the whole vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class HeadStart:
    """`config` and `tensors` as `head_file` writes them, and the model's `embed`."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    embed: Embed


def begin_head(path: Path, texts: Sequence[Tensor], draft_vocab: int, window: int) -> HeadStart:
    """For the model in `path`, of whose own `texts` (token ids) the most frequent tokens are the ones it will know.

    Random numbers are torch's. Errors: `ModelError` for the files, `UsageError` for a model that makes no tokens.
    """
    checkpoint = open_checkpoint(path)
    try:
        if is_encoder(checkpoint.config):
            raise UsageError(f"{path} is an encoder, which makes no tokens; name a decoder")
        model = build_model(
            checkpoint.config,
            lambda name: checkpoint.tensor(name, torch.float32),
            torch.float32,
            "cpu",
            names=checkpoint.names,
        )
        counts = torch.bincount(torch.cat(list(texts)).long(), minlength=model.vocab_size)
        # Of tokens that were never seen the first, as tokenizers number the frequent ones first.
        ids = counts.argsort(descending=True, stable=True)[:draft_vocab].sort().values
        config = _config(checkpoint, model, len(ids), window)
        return HeadStart(config, {**_weights(config, checkpoint), **_output(model, ids), "draft_ids": ids}, model.embed)
    finally:
        checkpoint.close()


def _config(checkpoint: Checkpoint, model: Model, draft_vocab: int, window: int) -> dict[str, Any]:
    found, hidden = checkpoint.config, model.hidden_size
    heads = _number(found, "num_attention_heads") or max(1, hidden // _HEAD_DIM)
    head_dim = _number(found, "head_dim") or max(2, hidden // heads // 2 * 2)
    kv_heads = _number(found, "num_key_value_heads") or heads
    rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
    theta = found.get("rope_theta") or (rope.get("rope_theta") if isinstance(rope, dict) else None) or _THETA
    return {
        "format": FORMAT,
        "version": VERSION,
        "trained_for": checkpoint.fingerprint,
        "vocab_size": model.vocab_size,
        "draft_vocab_size": draft_vocab,
        "hidden_size": hidden,
        "intermediate_size": _number(found, "intermediate_size") or 4 * hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads if heads % kv_heads == 0 else heads,
        "head_dim": head_dim,
        "hidden_act": found["hidden_act"] if found.get("hidden_act") in ACTIVATIONS else "silu",
        "rms_norm_eps": float(found.get("rms_norm_eps") or _NORM_EPS),
        "max_position_embeddings": model.max_model_len,
        "sliding_window": min(window, model.max_model_len),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(theta)},
    }


def _number(config: Config, name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and value > 0 else None


def _weights(config: Config, checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Everything but the vocabulary's rows."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q_items, kv_items = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    of_layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (q_items, hidden),
        "self_attn.k_proj": (kv_items, hidden),
        "self_attn.v_proj": (kv_items, hidden),
        "self_attn.o_proj": (hidden, q_items),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    last = f"model.layers.{int(checkpoint.config.get('num_hidden_layers') or 1) - 1}."
    tensors = {
        f"model.layers.0.{name}.weight": _like(checkpoint, f"{last}{name}.weight", shape)
        for name, shape in of_layer.items()
    }
    return tensors | {
        "token_norm.weight": torch.ones(hidden),
        "state_norm.weight": torch.ones(hidden),
        "norm.weight": _like(checkpoint, "model.norm.weight", (hidden,)),
        "join.weight": torch.randn(hidden, 2 * hidden) * (0.5 / math.sqrt(hidden)),
    }


def _like(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Tensor:
    """The model's own tensor where it has one of this name and shape, or a first guess."""
    if name in checkpoint.names:
        try:
            found = checkpoint.tensor(name, torch.float32)
        except ModelError:
            found = torch.empty(0)  # held in a way that only its family can read
        if found.shape == shape:
            return found
    return torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * _MATRIX_SPREAD


def _output(model: Model, ids: Tensor) -> dict[str, Tensor]:
    """The model's rows of these tokens: what it makes of each number of a state by itself."""
    columns = [
        model.logits(torch.eye(model.hidden_size)[at : at + _COLUMNS])[:, ids]
        for at in range(0, model.hidden_size, _COLUMNS)
    ]
    return {"head.weight": torch.cat(columns).T.contiguous()}
