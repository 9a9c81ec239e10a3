"""Model folders written by hand: safetensors, `config.json`, `tokenizer.json`, all from a seed and nothing fetched.

`tiny` and `chain` describe their models with it; the weight cases write broken files with `write_safetensors`.

INVARIANT: equal arguments give equal bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Model:
    """A folder to serve, and what a case needs to know of it: its size and the ids of its texts."""

    folder: Path
    vocab_size: int
    ids: Mapping[str, int] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


def write_safetensors(file: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """float32 tensors, one behind the other."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.size * 4
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(np.ascontiguousarray(tensor, dtype="<f4").tobytes() for tensor in tensors.values())
    file.write_bytes(struct.pack("<Q", len(text)) + text + body)


def llama_config(**changes: Any) -> dict[str, Any]:
    """A `config.json`; what is not given is as in TINY."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        **changes,
    }


def byte_alphabet() -> dict[int, str]:
    """The published byte-level alphabet: printable bytes are themselves, the others move up by 256."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in plain}
    for byte in range(256):
        table.setdefault(byte, chr(256 + len(table) - len(plain)))
    return table


def spelled(piece: bytes) -> str:
    """A piece as the vocabulary writes it."""
    alphabet = byte_alphabet()
    return "".join(alphabet[byte] for byte in piece)


def tokenizer_json(
    vocab: Mapping[str, int], merges: Sequence[tuple[str, str]], added: Mapping[str, tuple[int, bool]]
) -> dict[str, Any]:
    """A byte-level BPE tokenizer. `added`: by text, the id and whether it is a control token."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id, "content": text, "special": special, "lstrip": False, "rstrip": False, "single_word": False,
             "normalized": False}
            for text, (id, special) in added.items()
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {**vocab, **{text: id for text, (id, _) in added.items()}},
            "merges": [list(pair) for pair in merges],
            "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        },
    }  # fmt: skip


def write_json(folder: Path, **files: Any) -> None:
    """Each argument is a file: `config={...}` writes `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
