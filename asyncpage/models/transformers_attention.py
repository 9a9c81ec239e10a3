"""Stands in the place of attention in models of the transformers library, and hears what their layers ask of it.

That library calls the two functions registered below, by the name that a model is built with: one makes masks, one
attends. `transformers_model` puts a `PagedCalls` into the modules of its model, listens once, and sends every call of
a step on to `attend`.

INVARIANT: what a layer asks in a step is what it asked when it was listened to, and nothing that it asks is left out:
what no cache or backend of ours can do is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

from asyncpage.backends.contract import LayerParams
from asyncpage.errors import ModelError
from asyncpage.models.attention import AttentionShape
from asyncpage.models.model import Attend

NAME = "asyncpage"
"""Of this way to attend, there."""

# Arguments that tell a layer's surroundings, and that no way to attend over one row of tokens heeds.
_IDLE = frozenset({"position_ids", "position_embeddings", "use_cache", "cache_position", "deterministic"})


@dataclass(frozen=True, slots=True, eq=False)
class LayerCall:
    """What a layer asks: its shape, what scores are multiplied by, and its sinks, one a head, if there are any.

    Keys and values of different widths are kept in a cache of the wider one.
    """

    shape: AttentionShape
    scale: float
    sinks: Tensor | None

    def within(self, max_model_len: int) -> LayerCall:
        """The same in a model of this context, where a window may hide nothing."""
        return self if self.shape.window < max_model_len else replace(self, shape=replace(self.shape, window=0))

    @property
    def params(self) -> LayerParams:
        return LayerParams(self.scale, sinks=None if self.sinks is None else self.sinks.detach().float())


class PagedCalls:
    """The attention calls of one model, whose modules know it from when it is made."""

    def __init__(self, model: nn.Module) -> None:
        self._heard: dict[int, LayerCall] | None = None
        self._known: dict[int, LayerCall] = {}
        self._attend: Attend | None = None
        for module in model.modules():
            module.paged_calls = self  # type: ignore[assignment]

    @contextmanager
    def heard(self) -> Iterator[dict[int, LayerCall]]:
        """What the layers ask meanwhile, by their index; their attention comes to zeros."""
        self._heard = self._known = {}
        try:
            yield self._heard
        finally:
            self._heard = None

    @contextmanager
    def sent_to(self, attend: Attend) -> Iterator[None]:
        """The layers' calls go to `attend` meanwhile."""
        self._attend = attend
        try:
            yield
        finally:
            self._attend = None

    def call(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, asked: Any) -> Tensor:
        """[1, T, heads, V] for `q`, `k`, `v` [1, heads, T, width]. Errors: `ModelError` for what is not obeyed."""
        layer = getattr(module, "layer_idx", None)
        if type(layer) is not int:
            raise ModelError(f"a {type(module).__name__} has no layer_idx")
        call = _read(layer, q, k, v, asked)
        if self._heard is not None:
            if layer in self._heard:
                raise ModelError(f"layer {layer} attends twice")
            window = _window(layer, mask)
            if asked.get("sliding_window") not in (None, window):
                asks, has = asked["sliding_window"], window or "none"
                raise ModelError(f"layer {layer} asks for a sliding_window of {asks}, and its mask has {has}")
            self._heard[layer] = replace(call, shape=replace(call.shape, window=window))
            return v.new_zeros(1, q.shape[2], q.shape[1], v.shape[3])
        known = self._known[layer]
        if replace(call.shape, window=known.shape.window) != known.shape or call.scale != known.scale:
            raise ModelError(f"layer {layer} asks attention for something else than when the model was loaded")
        assert self._attend is not None
        q_THD, k_TGD, v_TGD = (_rows(part, known.shape.head_dim) for part in (q, k, v))
        return self._attend(layer, q_THD, k_TGD, v_TGD)[None, ..., : v.shape[3]]


def _read(layer: int, q: Tensor, k: Tensor, v: Tensor, asked: Mapping[str, Any]) -> LayerCall:
    """What is asked, but for the mask."""
    if len(q) != 1 or not q.shape[2] == k.shape[2] == v.shape[2] or k.shape[1] != v.shape[1] or q.shape[1] % k.shape[1]:
        shapes = ", ".join(str(list(part.shape)) for part in (q, k, v))
        raise ModelError(f"layer {layer} attends with queries, keys and values of {shapes}")
    for name, value in asked.items():
        match name:
            case "scaling" | "softcap" | "s_aux" | "sliding_window":
                pass
            case "is_causal" if value in (None, True):
                pass
            case _ if name.startswith(("output_", "dropout")) and not value:
                pass
            case _ if value is not None and name not in _IDLE:
                raise ModelError(f"layer {layer} gives attention {name}, which is not obeyed")
    scale, softcap, sinks = asked.get("scaling"), asked.get("softcap"), asked.get("s_aux")
    for name, number in (("scaling", scale), ("softcap", softcap)):
        if number is not None and type(number) not in (float, int):
            raise ModelError(f"layer {layer} gives attention a {name} that is no number: {type(number).__name__}")
    if sinks is not None and sinks.shape != (q.shape[1],):
        raise ModelError(f"layer {layer} has sinks of shape {list(sinks.shape)}, one a head is obeyed")
    width = max(q.shape[3], v.shape[3])
    shape = AttentionShape(
        q_heads=q.shape[1],
        kv_heads=k.shape[1],
        head_dim=width,
        v_head_dim=width,
        softcap=float(softcap or 0.0),
        sinks=sinks is not None,
    )
    return LayerCall(shape, q.shape[3] ** -0.5 if scale is None else float(scale), sinks)


def _rows(part_HTD: Tensor, width: int) -> Tensor:
    """[1, heads, T, D] as [T, heads, width]. Zeros behind keys and queries, or values, change nothing but the room."""
    part_THD = part_HTD[0].transpose(0, 1)
    return part_THD if part_THD.shape[2] == width else functional.pad(part_THD, (0, width - part_THD.shape[2]))


def _window(layer: int, mask: Tensor | None) -> int:
    """The window that a mask stands for, 0 for none. Errors: `ModelError` when it is no such mask."""
    asked = getattr(mask, "asked", None)
    if asked is None:
        raise ModelError(f"layer {layer} has a mask of its own" if mask is not None else f"layer {layer} has no mask")
    sees, size, given = asked["mask_function"], asked.get("local_size") or 0, asked.get("attention_mask")
    if given is not None and given.device.type != "meta" and not bool(given.all()):
        raise ModelError(f"layer {layer} hides tokens from all others")
    zero = torch.zeros((), dtype=torch.int64)
    # Around the beginning, around the window's end, and where windows that are cut at multiples would differ.
    for at in {0, 1, 2, 3, 61, max(size - 1, 0), size, size + 1, 2 * size + 1, 5 * size // 2}:
        q, kv = torch.tensor(at), torch.arange(at + 4)
        try:
            found = torch.as_tensor(sees(zero, zero, q, kv)).expand(at + 4)
        except IndexError:  # a mask that depends on the tokens
            raise ModelError(f"layer {layer} has a mask that depends on the tokens") from None
        if not torch.equal(
            found.cpu(), (kv <= at) & ((kv > at - size) if size else torch.ones_like(kv, dtype=torch.bool))
        ):
            raise ModelError(f"layer {layer} has a mask that is neither causal nor a causal window")
    return int(size)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *scaling: float,
    **asked: Any,
) -> tuple[Tensor, None]:
    if scaling:
        (asked["scaling"],) = scaling
    calls: Any = module.paged_calls
    return calls.call(module, query, key, value, attention_mask, asked), None


def _describe(*, device: Any = None, **asked: Any) -> Tensor:
    """No mask but what one was asked for, which nobody reads in a step."""
    mask = torch.empty((1, 1, 1, 1), device=device)
    mask.asked = asked  # type: ignore[attr-defined]
    return mask


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _describe)
