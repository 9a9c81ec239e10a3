"""The Llama shape: grouped-query attention with rotary positions, gated feed-forward, a norm before each.

Serves Llama, Mistral and their kin. The executor calls `forward` once a step and gives `attend`, which owns caches.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from asyncpage.backends.contract import AttentionSpec, LayerParams
from asyncpage.messages import LayerGroup
from asyncpage.models.config import ModelConfig
from asyncpage.models.layers import Linear, RmsNorm, SwiGlu
from asyncpage.models.model import Attend
from asyncpage.models.parameter import Parameters
from asyncpage.models.rope import Rope, turn


class LlamaModel:
    """See `model.Model`. Weights have Hugging Face's names; query, key and value are one product."""

    def __init__(self, config: ModelConfig, parameters: Parameters) -> None:
        self._config = config
        self._dtype = parameters.dtype
        self.vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self.max_model_len = config.rope.usable_positions
        windows = tuple(dict.fromkeys(sorted(config.windows)))  # full attention, 0, comes first
        self.groups = tuple(
            LayerGroup("window" if window else "full", window, config.windows.count(window)) for window in windows
        )
        self.layer_groups = tuple(windows.index(window) for window in config.windows)
        self.layer_slots = tuple(config.windows[:at].count(window) for at, window in enumerate(config.windows))
        self.layer_params = (LayerParams(config.head_dim**-0.5),) * config.layers

        self._embedding = parameters.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        self._rope = Rope(config.rope, parameters.device)
        self._layers = [LlamaLayer(config, parameters, index) for index in range(config.layers)]
        self._norm = RmsNorm(parameters.take("model.norm.weight", config.hidden_size), config.norm_eps)
        self._head = Linear(
            self._embedding
            if config.tied_head
            else parameters.take("lm_head.weight", config.vocab_size, config.hidden_size)
        )

    def specs(self, kv_dtype: str, block_size: int) -> tuple[AttentionSpec, ...]:
        """One a group; they differ in the window only."""
        config = self._config
        return tuple(
            AttentionSpec(
                kind="mha",
                q_heads=config.q_heads,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                v_head_dim=config.head_dim,
                dtype=str(self._dtype).removeprefix("torch."),
                kv_dtype=kv_dtype,
                block_size=block_size,
                window=group.window,
            )
            for group in self.groups
        )

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Hidden states [T, E] after the last norm."""
        hidden_TE = functional.embedding(tokens_T, self._embedding)
        angles = self._rope.angles(positions_T, self._dtype)
        for layer in self._layers:
            layer.advance(hidden_TE, angles, attend)
        return self._norm(hidden_TE)

    def logits(self, hidden_RE: Tensor) -> Tensor:
        """float32 [R, vocab_size]."""
        return self._head(hidden_RE).float()


class LlamaLayer:
    """One layer: attention, then feed-forward, each added to the residual stream."""

    def __init__(self, config: ModelConfig, parameters: Parameters, index: int) -> None:
        self._index = index
        self._q_heads, self._kv_heads, self._head_dim = config.q_heads, config.kv_heads, config.head_dim
        prefix, hidden = f"model.layers.{index}.", config.hidden_size
        q_items, kv_items = config.q_heads * config.head_dim, config.kv_heads * config.head_dim

        def norm(name: str) -> RmsNorm:
            return RmsNorm(parameters.take(f"{prefix}{name}.weight", hidden), config.norm_eps)

        def linear(names: tuple[str, ...], rows: tuple[int, ...], columns: int, biased: bool) -> Linear:
            stems = [prefix + name for name in names]
            weight = parameters.join(tuple(f"{stem}.weight" for stem in stems), rows, columns)
            return Linear(weight, parameters.join(tuple(f"{stem}.bias" for stem in stems), rows) if biased else None)

        qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self._attention_norm = norm("input_layernorm")
        self._qkv = linear(qkv, (q_items, kv_items, kv_items), hidden, config.attention_bias)
        self._output = linear(("self_attn.o_proj",), (hidden,), q_items, config.attention_bias)
        self._mlp_norm = norm("post_attention_layernorm")
        inner = config.intermediate_size
        self._mlp = SwiGlu(
            linear(("mlp.gate_proj", "mlp.up_proj"), (inner, inner), hidden, config.mlp_bias),
            linear(("mlp.down_proj",), (hidden,), inner, config.mlp_bias),
        )

    def advance(self, hidden_TE: Tensor, angles: tuple[Tensor, Tensor], attend: Attend) -> None:
        """Add this layer's part to `hidden_TE`, in place."""
        tokens, turned = len(hidden_TE), self._q_heads + self._kv_heads
        qkv = self._qkv(self._attention_norm(hidden_TE)).view(tokens, turned + self._kv_heads, self._head_dim)
        # Queries and keys lie side by side, so that one turn serves both.
        qk = turn(qkv[:, :turned], angles)
        out_THD = attend(self._index, qk[:, : self._q_heads], qk[:, self._q_heads :], qkv[:, turned:])
        hidden_TE += self._output(out_THD.reshape(tokens, self._q_heads * self._head_dim))
        hidden_TE += self._mlp(self._mlp_norm(hidden_TE))
