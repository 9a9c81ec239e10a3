"""The oracle of TINY's answers: a plain forward pass in float64, one sequence at a time and without a cache.

`test_oracle` holds it to transformers; texts are encoded by the tokenizers library. Sources: the papers of the Llama
models (arXiv 2302.13971, 2307.09288).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tests.cases.model_folder import Model

Matrix = np.ndarray[Any, np.dtype[np.float64]]

CLOSE = 1e-3  # two logits closer than this may change places


class Oracle:
    """Reads a folder's weights by itself. Heads, layers and sizes are TINY's."""

    def __init__(self, model: Model) -> None:
        raw = (model.folder / "model.safetensors").read_bytes()
        end = 8 + int.from_bytes(raw[:8], "little")
        self._model = model
        self.weights: dict[str, Matrix] = {}
        for name, info in json.loads(raw[8:end]).items():
            first, last = info["data_offsets"]
            values = np.frombuffer(raw[end + first : end + last], "<f4").astype(np.float64)
            self.weights[name] = values.reshape(info["shape"])

        self._tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))

    def with_weights(self, weights: dict[str, Matrix]) -> Oracle:
        """The same model with other numbers."""
        other = Oracle(self._model)
        other.weights = weights
        return other

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def logits(self, tokens: Sequence[int]) -> Matrix:
        """[tokens, vocabulary]: what comes after each token."""
        weights = self.weights
        hidden = weights["model.embed_tokens.weight"][list(tokens)].copy()
        for layer in range(2):
            prefix = f"model.layers.{layer}."
            normed = _norm(hidden, weights[prefix + "input_layernorm.weight"])
            q, k, v = (normed @ weights[f"{prefix}self_attn.{name}_proj.weight"].T for name in "qkv")
            hidden += _attention(q, k, v) @ weights[prefix + "self_attn.o_proj.weight"].T
            normed = _norm(hidden, weights[prefix + "post_attention_layernorm.weight"])
            gate = normed @ weights[prefix + "mlp.gate_proj.weight"].T
            inner = gate / (1 + np.exp(-gate)) * (normed @ weights[prefix + "mlp.up_proj.weight"].T)
            hidden += inner @ weights[prefix + "mlp.down_proj.weight"].T
        return _norm(hidden, weights["model.norm.weight"]) @ weights["lm_head.weight"].T

    def check_greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Every token of `answer` is the most likely one after those before it."""
        logits = self.logits([*prompt, *answer])[len(prompt) - 1 : -1]
        gaps = logits.max(-1) - logits[np.arange(len(answer)), list(answer)]
        wrong = np.flatnonzero(gaps > CLOSE)
        assert not wrong.size, f"token {wrong[0]} of {list(answer)} should be {logits[wrong[0]].argmax()}"


def _norm(hidden: Matrix, weight: Matrix) -> Matrix:
    return hidden / np.sqrt((hidden**2).mean(-1, keepdims=True) + 1e-6) * weight


def _attention(q: Matrix, k: Matrix, v: Matrix, heads: int = 4, kv_heads: int = 2, size: int = 16) -> Matrix:
    length = len(q)
    turned_q = _turn(q.reshape(length, heads, size))
    turned_k = _turn(k.reshape(length, kv_heads, size))
    values = v.reshape(length, kv_heads, size)
    out = np.empty((length, heads, size))
    later = np.triu(np.ones((length, length), bool), 1)
    for head in range(heads):
        group = head * kv_heads // heads
        scores = turned_q[:, head] @ turned_k[:, group].T / np.sqrt(size)
        scores[later] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, head] = shares / shares.sum(-1, keepdims=True) @ values[:, group]
    return out.reshape(length, heads * size)


def _turn(vectors: Matrix) -> Matrix:
    """Rotary positions in the half-split layout, base 10,000."""
    length, _, size = vectors.shape
    rates = 10000.0 ** (-np.arange(0, size, 2) / size)
    angles = np.arange(length)[:, None, None] * rates
    left, right = vectors[..., : size // 2], vectors[..., size // 2 :]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], -1)
