"""What the executor may ask of any model, and what a model asks of the executor's attention.

INVARIANT: a token's hidden state depends on its own sequence only; sequences meet nowhere but in `attend`, which
keeps them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from asyncpage.backends.contract import AttentionSpec, LayerParams
from asyncpage.messages import LayerGroup

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q [T, q_heads, D], k [T, kv_heads, D], v [T, kv_heads, V]) -> out [T, q_heads, V]: stores k and v in
the layer's cache and attends to it."""


class Model(Protocol):
    """A decoder, loaded.

    `groups`: layers that share a block table. `layer_groups`, `layer_slots`: per layer, its group and its place in
    it (KV tensor j serves the j-th layer of every group). `layer_params`: per layer, for the backend.
    """

    vocab_size: int
    hidden_size: int
    max_model_len: int
    groups: tuple[LayerGroup, ...]
    layer_groups: tuple[int, ...]
    layer_slots: tuple[int, ...]
    layer_params: tuple[LayerParams, ...]

    def specs(self, kv_dtype: str, block_size: int) -> tuple[AttentionSpec, ...]:
        """What each group asks of a backend, when the cache holds `kv_dtype` in blocks of `block_size` tokens."""
        ...

    def embed(self, tokens_T: Tensor) -> Tensor:
        """What the layers begin with: new rows [T, E] for int64 tokens."""
        ...

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Hidden states [T, E] after the last norm, for int64 tokens and positions of all sequences in a row."""
        ...

    def logits(self, hidden_RE: Tensor) -> Tensor:
        """float32 [R, vocab_size]."""
        ...
