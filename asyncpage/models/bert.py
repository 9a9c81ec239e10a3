"""The BERT shape: attention both ways, learned absolute positions, a norm behind each part.

The encoder's runner calls `encode`. Prompts lie in a row without padding; attention alone needs them apart.

Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from asyncpage.errors import ModelError
from asyncpage.models.config import Config, refuse_unless, whole
from asyncpage.models.layers import LayerNorm, RowMap
from asyncpage.models.parameter import Parameters


@dataclass(frozen=True, slots=True)
class BertConfig:
    """Sizes in items. `kinds`: of token, of which a prompt has the first."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    norm_eps: float
    max_positions: int
    kinds: int

    @classmethod
    def parse(cls, config: Config) -> BertConfig:
        """Read Hugging Face's names. Errors: `ModelError` naming the field, what was found and what would do."""
        hidden_size, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
        if hidden_size % heads:
            raise ModelError(f"config: hidden_size ({hidden_size}) is no multiple of num_attention_heads ({heads})")
        refuse_unless(
            config,
            hidden_act=("gelu",),
            position_embedding_type=("absolute",),
            is_decoder=(False,),
            add_cross_attention=(False,),
        )
        norm_eps = config.get("layer_norm_eps", 1e-12)
        if not isinstance(norm_eps, float | int) or not 0 <= norm_eps < 1:
            raise ModelError(f"config: layer_norm_eps must be a small positive number, found {norm_eps!r}")
        return cls(
            vocab_size=whole(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=whole(config, "intermediate_size"),
            layers=whole(config, "num_hidden_layers"),
            heads=heads,
            norm_eps=float(norm_eps),
            max_positions=whole(config, "max_position_embeddings", 512),
            kinds=whole(config, "type_vocab_size", 2),
        )


class Bert:
    """See `family.Family`."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "BERT"
    kind: ClassVar[Literal["decoder", "encoder"]] = "encoder"
    architectures: ClassVar[tuple[str, ...]] = ("BertModel",)

    def build(self, config: Config, parameters: Parameters) -> BertModel:
        return BertModel(BertConfig.parse(config), parameters)


class BertModel:
    """See `encoder.Encoder`. Weights have Hugging Face's names; query, key and value are one product."""

    def __init__(self, config: BertConfig, parameters: Parameters) -> None:
        hidden = config.hidden_size
        self.vocab_size = config.vocab_size
        self.hidden_size = hidden
        self.max_model_len = config.max_positions
        self._words = parameters.take("embeddings.word_embeddings.weight", config.vocab_size, hidden)
        positions = parameters.take("embeddings.position_embeddings.weight", config.max_positions, hidden)
        kinds = parameters.take("embeddings.token_type_embeddings.weight", config.kinds, hidden)
        self._places = positions + kinds[0]  # a prompt is one text, so every token is of the first kind
        self._embedding_norm = _norm(parameters, "embeddings.LayerNorm", config)
        self._layers = [BertLayer(config, parameters, f"encoder.layer.{index}.") for index in range(config.layers)]

    def encode(self, tokens_T: Tensor, lengths: Sequence[int]) -> Tensor:
        """Hidden states [T, E]."""
        places_TE = torch.cat([self._places[:length] for length in lengths])
        hidden_TE = self._embedding_norm(functional.embedding(tokens_T, self._words) + places_TE)
        runs = [(length, len(list(same))) for length, same in groupby(lengths)]
        for layer in self._layers:
            hidden_TE = layer(hidden_TE, runs)
        return hidden_TE


class BertLayer:
    """One layer: attention, then feed-forward, each added to its input and normed."""

    def __init__(self, config: BertConfig, parameters: Parameters, prefix: str) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self._heads, self._head_dim = config.heads, hidden // config.heads
        parts = tuple(f"{prefix}attention.self.{name}" for name in ("query", "key", "value"))
        self._qkv = parameters.linear(parts, (hidden,) * 3, hidden, is_biased=True)
        self._output = _linear(parameters, f"{prefix}attention.output.dense", hidden, hidden)
        self._attention_norm = _norm(parameters, f"{prefix}attention.output.LayerNorm", config)
        self._up = _linear(parameters, f"{prefix}intermediate.dense", inner, hidden)
        self._down = _linear(parameters, f"{prefix}output.dense", hidden, inner)
        self._feed_forward_norm = _norm(parameters, f"{prefix}output.LayerNorm", config)

    def __call__(self, hidden_TE: Tensor, runs: Sequence[tuple[int, int]]) -> Tensor:
        """`runs`: lengths of prompts, and how many of each lie beside one another."""
        attended_TE = self._output(self._attend(self._qkv(hidden_TE), runs))
        hidden_TE = self._attention_norm(hidden_TE + attended_TE)
        return self._feed_forward_norm(hidden_TE + self._down(functional.gelu(self._up(hidden_TE))))

    def _attend(self, qkv: Tensor, runs: Sequence[tuple[int, int]]) -> Tensor:
        """Every token of a prompt to every token of it: [T, E]."""
        parts = []
        for one, (length, count) in zip(torch.split(qkv, [a * b for a, b in runs]), runs, strict=True):
            q, k, v = one.view(count, length, 3, self._heads, self._head_dim).permute(2, 0, 3, 1, 4)
            out = functional.scaled_dot_product_attention(q, k, v)
            parts.append(out.transpose(1, 2).reshape(count * length, self._heads * self._head_dim))
        return torch.cat(parts)


def _linear(parameters: Parameters, name: str, rows: int, columns: int) -> RowMap:
    return parameters.linear([name], [rows], columns, is_biased=True)


def _norm(parameters: Parameters, name: str, config: BertConfig) -> LayerNorm:
    weight, bias = (parameters.take(f"{name}.{part}", config.hidden_size) for part in ("weight", "bias"))
    return LayerNorm(weight, bias, config.norm_eps)
