"""Writes a Llama of any size with random weights on a grid of four bits, to see what a size costs where there is none.

`bench roofline` asks for it. The vocabulary is that of a file that is there; what the model says is noise.

INVARIANT: a seed and a shape give the same file, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from asyncpage.errors import UsageError
from asyncpage.formats.gguf import GGUFFile
from asyncpage.formats.gguf_writer import Outline, write_gguf

_HEAD_DIM = 64
_GROUPED = 4  # heads that share a key and a value
_BLOCK = 32
_CONTEXT = 8192
# Of quants that are drawn evenly: 0 to 15, and -127 to 127.
_DEVIATION_4, _MIDDLE_4, _DEVIATION_8 = 4.61, 7.5, 73.6


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a Llama whose heads have 64 columns, four of them to a key, and whose head is its embedding."""

    hidden: int
    intermediate: int
    layers: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Of "2048x8192x16": hidden, intermediate, layers. Errors: `UsageError`."""
        found = re.fullmatch(r"(\d{1,6})x(\d{1,6})x(\d{1,4})", text)
        if found is None:
            raise UsageError(f"a shape is hidden x intermediate x layers, as in 2048x8192x16; got {text!r}")
        hidden, intermediate, layers = map(int, found.groups())
        step = _HEAD_DIM * _GROUPED
        if hidden % step or not hidden or intermediate % _BLOCK or not intermediate or not layers:
            raise UsageError(
                f"hidden must be a multiple of {step} and intermediate one of {_BLOCK}, with a layer at least; "
                f"got {text}"
            )
        return cls(hidden, intermediate, layers)


def write_random_model(
    path: Path, shape: Shape, vocabulary: Path, told: Callable[[int, int], None], seed: int = 0
) -> None:
    """Matrices are Q4_1, the embedding Q8_0. `vocabulary`: a GGUF file whose tokens it has.

    Errors: `OSError`; `ModelError` and `FormatError` for that file.
    """
    source = GGUFFile(vocabulary)
    try:
        kept = ("tokenizer.",)
        metadata = {key: value for key, value in source.metadata.items() if key.startswith(kept)}
        heads = shape.hidden // _HEAD_DIM
        metadata |= {
            "general.architecture": "llama",
            "general.name": f"random {shape.hidden}x{shape.intermediate}x{shape.layers}",
            "llama.block_count": shape.layers,
            "llama.context_length": _CONTEXT,
            "llama.embedding_length": shape.hidden,
            "llama.feed_forward_length": shape.intermediate,
            "llama.attention.head_count": heads,
            "llama.attention.head_count_kv": heads // _GROUPED,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.freq_base": 10000.0,
            "llama.rope.dimension_count": _HEAD_DIM,
            "llama.vocab_size": len(source.metadata["tokenizer.ggml.tokens"]),
        }
        write_gguf(path, metadata, tuple(_tensors(shape, metadata["llama.vocab_size"], seed)), told)
    finally:
        source.close()


def _tensors(shape: Shape, vocab_size: int, seed: int) -> Iterator[Outline]:
    random = np.random.default_rng(seed)
    hidden, narrow = shape.hidden, shape.hidden // _GROUPED

    def matrix(name: str, rows: int, columns: int) -> Outline:
        return Outline(name, "Q4_1", (rows, columns), partial(_four_bits, random, rows, columns))

    def norm(name: str) -> Outline:
        return Outline(name, "F32", (hidden,), np.ones(hidden, dtype="<f4").tobytes)

    yield Outline("token_embd.weight", "Q8_0", (vocab_size, hidden), partial(_eight_bits, random, vocab_size, hidden))
    for layer in range(shape.layers):
        begin = f"blk.{layer}."
        yield norm(f"{begin}attn_norm.weight")
        yield matrix(f"{begin}attn_q.weight", hidden, hidden)
        yield matrix(f"{begin}attn_k.weight", narrow, hidden)
        yield matrix(f"{begin}attn_v.weight", narrow, hidden)
        yield matrix(f"{begin}attn_output.weight", hidden, hidden)
        yield norm(f"{begin}ffn_norm.weight")
        yield matrix(f"{begin}ffn_gate.weight", shape.intermediate, hidden)
        yield matrix(f"{begin}ffn_up.weight", shape.intermediate, hidden)
        yield matrix(f"{begin}ffn_down.weight", hidden, shape.intermediate)
    yield norm("output_norm.weight")


def _four_bits(random: np.random.Generator, rows: int, columns: int) -> bytes:
    """So scaled that a row's product with what has variance 1 has variance 1."""
    scale = 1.0 / (_DEVIATION_4 * columns**0.5)
    blocks = np.zeros(rows * columns // _BLOCK, dtype=[("scale", "<f2"), ("offset", "<f2"), ("low", "u1", (16,))])
    blocks["scale"], blocks["offset"] = scale, -_MIDDLE_4 * scale
    blocks["low"] = random.integers(0, 256, blocks["low"].shape, dtype=np.uint8)
    return blocks.tobytes()


def _eight_bits(random: np.random.Generator, rows: int, columns: int) -> bytes:
    blocks = np.zeros(rows * columns // _BLOCK, dtype=[("scale", "<f2"), ("quants", "i1", (_BLOCK,))])
    blocks["scale"] = 1.0 / (_DEVIATION_8 * columns**0.5)
    blocks["quants"] = random.integers(-127, 128, blocks["quants"].shape, dtype=np.int8)
    return blocks.tobytes()
