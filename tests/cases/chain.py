"""CHAIN: a model whose next token depends on the current one alone, by a table: every logit in closed form.

Embeddings are one-hot and both halves of its layer add nothing, so the logits after a token are that token's column
of the head.

INVARIANT: `CERTAIN` above all others for the next token of a script; without a script an answer ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tests.cases.model_folder import (
    Model,
    llama_config,
    spelled,
    tokenizer_json,
    write_json,
    write_safetensors,
)

CERTAIN = 24.0  # among 3,000 tokens the others together have a probability of 1e-7
EOS = "<eos>"
CONTROLS = ("<pad>", EOS, "<eos2>")
LAST_USER = "{% for m in messages if m.role == 'user' %}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}"

Piece = str | bytes
Table = Mapping[Piece, Mapping[Piece, float]]


def write_chain(
    folder: Path,
    scripts: Mapping[str, Sequence[Piece]],
    table: Table | None = None,
    *,
    pieces: Iterable[Piece] = (),
    otherwise: Mapping[Piece, float] | None = None,
    context: int = 2048,
    template: str = LAST_USER,
    generation: Mapping[str, Any] | None = None,
    eos_token: str | None = EOS,
    flags: tuple[str, ...] = (),
) -> Model:
    """`scripts`: by start token ("@name"), the pieces that follow one another; the last may be a control token.

    `table`: logits after a token, for what is no script; all others have 0. `otherwise`: those after any token that
    neither names. `pieces`: further tokens. A piece of one byte is that byte's token.
    """
    given = {} if table is None else dict(table)
    names = [*scripts, *(key for key in given if _is_start(key) and key not in scripts)]
    used = [piece for script in scripts.values() for piece in script]
    used += [piece for key, row in given.items() for piece in (key, *row)]
    ids = _vocabulary(names, [*used, *pieces])
    logits = np.zeros((len(ids), len(ids)), np.float32)  # [current, next]
    ends = {EOS: CERTAIN} if otherwise is None else otherwise
    for piece, value in ends.items():
        logits[:, ids[_key(piece)]] = value
    for current, after in _steps(scripts).items():
        row = logits[ids[current]]
        row[:] = 0
        row[ids[after]] = CERTAIN
    for current, row_of in given.items():
        row = logits[ids[_key(current)]]
        row[:] = 0
        for after, value in row_of.items():
            row[ids[_key(after)]] = value
    _write(folder, ids, names, logits, context, template, generation, eos_token)
    return Model(folder, len(ids), {_shown(key): id for key, id in ids.items()}, flags)


def log_softmax(row: Mapping[Piece, float], vocab_size: int) -> dict[Piece, float]:
    """The closed form of what a table row's tokens have as log-probabilities; every other token has logit 0."""
    total = sum(math.exp(value) for value in row.values()) + (vocab_size - len(row))
    return {piece: value - math.log(total) for piece, value in row.items()}


def _is_start(piece: Piece) -> bool:
    return isinstance(piece, str) and piece.startswith("@")


def _key(piece: Piece) -> str | bytes:
    """Start and control tokens by their text, all else by its bytes."""
    if isinstance(piece, str) and (piece in CONTROLS or _is_start(piece)):
        return piece
    return piece.encode() if isinstance(piece, str) else piece


def _shown(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")


def _steps(scripts: Mapping[str, Sequence[Piece]]) -> dict[str | bytes, str | bytes]:
    steps: dict[str | bytes, str | bytes] = {}
    for name, script in scripts.items():
        for current, after in pairwise((name, *script)):
            known = steps.setdefault(_key(current), _key(after))
            assert known == _key(after), f"{current!r} goes on in two ways; the scripts need two models"
    return steps


def _vocabulary(names: Sequence[str], pieces: Iterable[Piece]) -> dict[str | bytes, int]:
    ids: dict[str | bytes, int] = {}
    for key in (*CONTROLS, *(bytes([byte]) for byte in range(256)), *map(_key, pieces), *names):
        ids.setdefault(key, len(ids))
    return ids


def _write(
    folder: Path,
    ids: Mapping[str | bytes, int],
    names: Sequence[str],
    logits: np.ndarray[Any, np.dtype[np.float32]],
    context: int,
    template: str,
    generation: Mapping[str, Any] | None,
    eos_token: str | None,
) -> None:
    size = len(ids)
    one_hot = np.eye(size, dtype=np.float32) * math.sqrt(size)
    # The norm makes of sqrt(size) on one place of `size` the same again, but for its epsilon of one millionth.
    head = (logits.T / math.sqrt(size)).astype(np.float32)
    zeros = {"self_attn.q_proj": (8, size), "self_attn.k_proj": (8, size), "self_attn.v_proj": (8, size),
             "self_attn.o_proj": (size, 8), "mlp.gate_proj": (8, size), "mlp.up_proj": (8, size),
             "mlp.down_proj": (size, 8)}  # fmt: skip
    tensors = {"model.embed_tokens.weight": one_hot, "model.norm.weight": np.ones(size, np.float32)}
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"model.layers.0.{name}.weight"] = np.ones(size, np.float32)
    for name, shape in zeros.items():
        tensors[f"model.layers.0.{name}.weight"] = np.zeros(shape, np.float32)
    tensors["lm_head.weight"] = head
    added = {key: (ids[key], key in CONTROLS) for key in (*CONTROLS, *names)}
    vocab = {spelled(key): id for key, id in ids.items() if isinstance(key, bytes)}
    ends = {} if eos_token is None else {"eos_token_id": ids[eos_token]}
    config = llama_config(
        vocab_size=size, hidden_size=size, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=context, rms_norm_eps=1e-6, **ends,
    )  # fmt: skip
    settings = {"chat_template": template} | ({} if eos_token is None else {"eos_token": eos_token})
    write_json(folder, config=config, tokenizer=tokenizer_json(vocab, (), added), tokenizer_config=settings)
    if generation is not None:
        named = {key: [ids[text] for text in value] for key, value in generation.items()}
        write_json(folder, generation_config=named)
    write_safetensors(folder / "model.safetensors", tensors)
