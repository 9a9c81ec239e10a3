"""A causal model of the transformers library as one of ours: its own module code, over our cache.

`transformers_family` makes it; the executor calls `forward` and `logits`, both of which run the library's own whole
forward pass. In `forward` the head sees no rows; in `logits` the rows that are given take the place of what the layers
would have made of tokens. So whatever a model does to its logits is done by its own code.

INVARIANT: the module's attention is in `PagedCalls`, so rows meet nowhere but in `attend`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncpage.backends.contract import AttentionSpec
from asyncpage.errors import ModelError
from asyncpage.models.layer_group import Layering
from asyncpage.models.model import Attend
from asyncpage.models.transformers_attention import LayerCall, PagedCalls

LISTENED_TOKENS = 3


class TransformersModel:
    """See `model.Model`. `module`: the library's, built with our attention; without values (on meta) it only tells.

    Errors of the constructor: `ModelError` for a model that asks of attention what it is not given here.
    """

    def __init__(self, module: Any, dtype: torch.dtype, max_model_len: int) -> None:
        self.max_model_len = max_model_len
        self._module, self._dtype, self._device = module, dtype, next(module.parameters()).device
        self._base = _Base(module)
        self._calls = PagedCalls(module)
        calls = self._listen()
        layering = self._layering = Layering.of([call.shape for call in calls])
        self.groups, self.layer_groups, self.layer_slots = layering.groups, layering.layer_groups, layering.layer_slots
        self.layer_params = tuple(call.params for call in calls)

    def specs(self, kv_dtype: str, block_size: int) -> tuple[AttentionSpec, ...]:
        """One a group."""
        return self._layering.specs(self._dtype, kv_dtype, block_size)

    def embed(self, tokens_T: Tensor) -> Tensor:
        """Rows [T, E], new ones, before whatever else the library does to them."""
        rows_TE: Tensor = self._module.get_input_embeddings()(tokens_T)
        return rows_TE

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Hidden states [T, E] after the last norm."""
        with self._calls.sent_to(attend):
            return self._hidden(tokens_T, positions_T)

    def logits(self, hidden_RE: Tensor) -> Tensor:
        """float32 [R, vocab_size]."""
        nothing_R = torch.zeros(len(hidden_RE), dtype=torch.int64, device=self._device)
        self._base.given = hidden_RE.unsqueeze(0)
        try:
            logits_RV: Tensor = self._run(nothing_R, nothing_R).logits[0].float()
        finally:
            self._base.given = None
        return logits_RV

    def _hidden(self, tokens_T: Tensor, positions_T: Tensor) -> Tensor:
        self._base.hidden = None
        self._run(tokens_T, positions_T)
        if self._base.hidden is None:
            raise ModelError("its layers are not run as one part of it")
        return self._base.hidden[0]

    def _run(self, tokens_T: Tensor, positions_T: Tensor) -> Any:
        # With a mask of ones the library does not look for sequences in a row by their positions.
        return self._module(
            input_ids=tokens_T.unsqueeze(0),
            position_ids=positions_T.unsqueeze(0),
            attention_mask=torch.ones_like(tokens_T).unsqueeze(0),
            use_cache=False,
        )

    def _listen(self) -> tuple[LayerCall, ...]:
        with torch.inference_mode(), self._calls.heard() as heard:
            tokens_T = torch.zeros(LISTENED_TOKENS, dtype=torch.int64, device=self._device)
            hidden_TE = self._hidden(tokens_T, torch.arange(LISTENED_TOKENS, device=self._device))
            logits_TV = self.logits(hidden_TE)
        if sorted(heard) != list(range(len(heard))) or not heard:
            raise ModelError(
                f"of its layers, {', '.join(map(str, sorted(heard))) or 'none'} call attention, and all are needed"
            )
        self.hidden_size, self.vocab_size = hidden_TE.shape[1], logits_TV.shape[1]
        return tuple(heard[layer].within(self.max_model_len) for layer in range(len(heard)))


class _Base:
    """Takes the place of the forward pass of a causal model's layers, without its head."""

    def __init__(self, module: Any) -> None:
        self.hidden: Tensor | None = None  # [1, T, E], of the last pass
        self.given: Tensor | None = None  # [1, R, E], instead of a pass
        self._kind: Any = None  # of what a pass returns
        base = module.get_decoder()
        self._forward, base.forward = base.forward, self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.given is not None:
            return self._kind(last_hidden_state=self.given)
        made = self._forward(*args, **kwargs)
        self._kind, self.hidden = type(made), made.last_hidden_state
        return self._kind(last_hidden_state=made.last_hidden_state[:, :0])
