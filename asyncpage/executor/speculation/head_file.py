"""A draft head's folder: `config.json`, which says what it is and whose, and `model.safetensors`.

The loader reads it, the training writes it. The config speaks as a model's does, of one layer, with what is our own:
`format`, `version`, `trained_for` (the fingerprint of the model's files) and `draft_vocab_size`.

INVARIANT: a head of another model is refused by name, and so is a field that this version does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from asyncpage.errors import FormatError, ModelError
from asyncpage.executor.speculation.draft_head import DraftHead
from asyncpage.formats.json_text import read_json_object
from asyncpage.formats.safetensors_folder import SINGLE_NAME, SafetensorsFolder
from asyncpage.formats.safetensors_writer import Stored, write_safetensors
from asyncpage.models.model import Model
from asyncpage.models.parameter import Parameters
from asyncpage.weights.fingerprint import fingerprint
from asyncpage.weights.stored_tensors import FLOATS, StoredTensors

FORMAT, VERSION = "asyncpage draft head", 1
CONFIG_NAME = "config.json"
IDS_NAME = "draft_ids"
_MOST_BYTES = 1 << 20

FIELDS = (
    "format", "version", "trained_for", "vocab_size", "draft_vocab_size", "hidden_size", "intermediate_size",
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps",
    "max_position_embeddings", "sliding_window", "rope_parameters",
)  # fmt: skip
"""Of the config, all of them obeyed."""


def read_head(
    folder: Path, model: Model, model_fingerprint: str, dtype: torch.dtype, device: torch.device | str
) -> tuple[DraftHead, str]:
    """The head in `folder` for `model`, of which only the shapes are looked at; and the head's own fingerprint.

    Errors: `ModelError` for a head of another model or what cannot be run, `FormatError` when a file is malformed.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; give the one that scripts/train_draft_head has written")
    path = folder / CONFIG_NAME
    config = _read_config(path)
    for name, own in (("hidden_size", model.hidden_size), ("vocab_size", model.vocab_size)):
        if config.get(name) != own:
            raise ModelError(f"{path}: the head is of another model: its {name} is {config.get(name)!r}, here {own}")
    if config["trained_for"] != model_fingerprint:
        raise ModelError(
            f"{path}: the head was trained for the model with the fingerprint {str(config['trained_for'])[:12]}, and "
            f"this one's is {model_fingerprint[:12]}; train one for it with scripts/train_draft_head"
        )
    tensors = SafetensorsFolder(folder)
    try:
        stored = StoredTensors(tensors)

        def take(name: str) -> torch.Tensor:
            stored.info(name, FLOATS)
            return stored.whole(name)

        if config["num_hidden_layers"] != 1:
            raise FormatError(str(path), "num_hidden_layers", f"is {config['num_hidden_layers']!r}, a head has 1")
        head = DraftHead(config, Parameters(take, dtype, device), _read_ids(stored, model.vocab_size))
        return head, fingerprint(path.read_bytes(), tensors.files.values())
    finally:
        tensors.close()


def write_head(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Make the folder, or write it anew. `config`: `FIELDS`; `tensors`: float ones, and the ids. Errors: `OSError`."""
    assert set(config) == set(FIELDS)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_NAME).unlink(missing_ok=True)  # it comes last: a folder that has one is whole
    write_safetensors(folder / SINGLE_NAME, {name: _stored(tensor) for name, tensor in tensors.items()})
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _read_config(path: Path) -> dict[str, Any]:
    found = read_json_object(path, _MOST_BYTES, most_containers=64)
    if found.get("format") != FORMAT:
        raise FormatError(
            str(path), "format", f"is {found.get('format')!r}, {FORMAT!r} is needed; scripts/train_draft_head writes it"
        )
    if found.get("version") != VERSION:
        raise FormatError(str(path), "version", f"is {found.get('version')!r}, this asyncpage reads {VERSION}")
    for name in FIELDS:
        if name not in found:
            raise FormatError(str(path), name, "is missing")
    for name in found:
        if name not in FIELDS:
            raise FormatError(str(path), name[:200], "is not known, and might change what the head computes")
    return found


def _read_ids(stored: StoredTensors, vocab_size: int) -> torch.Tensor:
    """The tokens that the head knows, int64 [D]: some, none twice and all of the model's."""
    stored.info(IDS_NAME, ("I32",), 1)
    ids = stored.whole(IDS_NAME).long()
    if not len(ids) or int(ids.min()) < 0 or int(ids.max()) >= vocab_size or len(set(ids.tolist())) < len(ids):
        raise stored.error(IDS_NAME, f"must hold ids below {vocab_size}, each once")
    return ids


def _stored(tensor: torch.Tensor) -> Stored:
    tensor = tensor.detach().cpu().contiguous()
    ids = tensor.dtype in (torch.int32, torch.int64)
    tensor = tensor.to(torch.int32 if ids else torch.float16)
    return "I32" if ids else "F16", tuple(tensor.shape), tensor.numpy().tobytes()
