"""TINY: a random Llama of two layers with a byte-level tokenizer, and its variants.

INVARIANT: ids 0 to 2 are control tokens, 3 to 258 the bytes, then merges, then the roles' marks.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tests.cases.case import all_cases
from tests.cases.model_folder import (
    Array,
    Model,
    byte_alphabet,
    llama_config,
    tokenizer_json,
    write_json,
    write_safetensors,
)

CONTROLS = ("<pad>", "<s>", "</s>")
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
MERGES = 241
VOCAB_SIZE = len(CONTROLS) + 256 + MERGES + len(ROLES)

TEMPLATE = (
    "{% if tools %}<|system|><tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>"
    'Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>{% endif %}'
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tiny(folder: Path, *, seed: int = 7, context: int = 2048, **settings: Any) -> Model:
    """`settings` go into `tokenizer_config.json`; None takes a key out."""
    rng = np.random.default_rng(seed)

    def random(*shape: int, scale: float = 0.4) -> Array:  # far from uniform answers, so that choices have margins
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    tensors = {"model.embed_tokens.weight": random(VOCAB_SIZE, 64), "model.norm.weight": np.ones(64, np.float32)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = np.ones(64, np.float32)
        shapes = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
                  "self_attn.o_proj": (64, 64), "mlp.gate_proj": (128, 64), "mlp.up_proj": (128, 64),
                  "mlp.down_proj": (64, 128)}  # fmt: skip
        for name, shape in shapes.items():
            tensors[f"{prefix}{name}.weight"] = random(*shape)
    tensors["lm_head.weight"] = random(VOCAB_SIZE, 64)
    vocab, merges, added = vocabulary()
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE, "add_bos_token": False, **settings}
    write_json(
        folder,
        config=llama_config(vocab_size=VOCAB_SIZE, max_position_embeddings=context, bos_token_id=1, eos_token_id=2),
        tokenizer=tokenizer_json(vocab, merges, added),
        tokenizer_config={key: value for key, value in config.items() if value is not None},
    )
    write_safetensors(folder / "model.safetensors", tensors)
    return Model(folder, VOCAB_SIZE, {**vocab, **{text: id for text, (id, _) in added.items()}})


def write_nan(folder: Path, token: int) -> Model:
    """NANM: TINY with one token whose embedding is not a number."""
    model = write_tiny(folder)
    file = folder / "model.safetensors"
    raw = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little") + token * 64 * 4  # embeddings are the first tensor
    raw[start : start + 64 * 4] = np.full(64, np.nan, "<f4").tobytes()
    file.write_bytes(bytes(raw))
    return model


@cache
def vocabulary() -> tuple[dict[str, int], list[tuple[str, str]], dict[str, tuple[int, bool]]]:
    """Vocabulary, merges and added tokens: byte pairs learned from the cases' symptoms, ties in alphabetic order."""
    alphabet = byte_alphabet()
    words = Counter(f" {word}" for case in all_cases().values() for word in case.symptom.split())
    spelled = {tuple(alphabet[byte] for byte in word.encode()): count for word, count in words.items()}
    merges: list[tuple[str, str]] = []
    while len(merges) < MERGES:
        pairs = Counter[tuple[str, str]]()
        for word, count in spelled.items():
            for pair in pairwise(word):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        spelled = {_merged(word, best): count for word, count in spelled.items()}
    texts = [*(alphabet[byte] for byte in range(256)), *(left + right for left, right in merges)]
    vocab = {text: len(CONTROLS) + index for index, text in enumerate(texts)}
    added = {text: (id, True) for id, text in enumerate(CONTROLS)}
    added |= {text: (len(CONTROLS) + len(vocab) + index, True) for index, text in enumerate(ROLES)}
    return vocab, merges, added


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for part in word:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return tuple(out)
