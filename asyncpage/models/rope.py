"""Rotary position embedding (Su et al. 2021, rotate-half form) and the ways to stretch it over longer contexts.

Settings come from the model's config; a step's cosines and sines are computed once and turned by every layer.

INVARIANT: a position's rotation depends on nothing but the position, so cached keys stay right for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from asyncpage.errors import ModelError

Angles = tuple[Tensor, Tensor]
"""A step's cosines and signed sines, each [T, 1, dim]."""


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """How positions turn: `dim` leading items of each head in pairs, by base `theta`, stretched by `kind`.

    `max_positions`: the model's context. `scaling`: the numbers of the kind, by Hugging Face's names.
    """

    kind: str
    theta: float
    dim: int
    max_positions: int
    scaling: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(
        cls, config: Mapping[str, Any], head_dim: int, max_positions: int, *, may_be_partial: bool = False
    ) -> RopeSettings:
        """Read `rope_theta` and `rope_scaling`, or the newer `rope_parameters`.

        `may_be_partial`: whether the family obeys `partial_rotary_factor`.
        Errors: `ModelError` for an unknown kind and for missing or impossible numbers.
        """
        given = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if not isinstance(given, Mapping) or any(isinstance(value, Mapping) for value in given.values()):
            raise ModelError(f"config: one rope scaling for all layers is supported, found {given!r}")
        scaling = {name: value for name, value in given.items() if value is not None}
        kind = str(scaling.get("rope_type", scaling.get("type", "default")))
        if kind not in _KINDS:
            raise ModelError(f"config: rope scaling {kind!r} is not supported; {', '.join(_KINDS)} are")
        share = scaling.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1.0
        if share != 1.0 and not may_be_partial:
            raise ModelError(f"config: partial_rotary_factor {share!r} is not supported by this model type; 1.0 is")
        theta = scaling.get("rope_theta", config.get("rope_theta")) or 10000.0
        dim = int(head_dim * _positive("partial_rotary_factor", share))
        if dim % 2 or not 0 < dim <= head_dim:
            raise ModelError(f"config: rope turns {dim} of {head_dim} items of a head; that must be an even share")
        if kind in ("llama3", "yarn", "longrope"):
            outer = config.get("original_max_position_embeddings")
            scaling.setdefault("original_max_position_embeddings", outer or max_positions)
        settings = cls(kind, _positive("rope_theta", theta), dim, max_positions, scaling)
        settings.frequencies()  # every number that the kind needs is there and can be used
        return settings

    def frequencies(self) -> tuple[Tensor, float]:
        """Radians per position, float32 [dim / 2], and the factor on cosines and sines."""
        return _KINDS[self.kind](self)

    @property
    def usable_positions(self) -> int:
        """How far positions turn independently of the sequence's length: the model's context, or its trained part."""
        if self.kind == "longrope" and self.scaling["long_factor"] != self.scaling["short_factor"]:
            return min(self.max_positions, int(self.number("original_max_position_embeddings")))
        return self.max_positions

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number of the scaling. Errors: `ModelError` when it is absent or something else."""
        value = self.scaling.get(name, default)
        if value is None:
            raise ModelError(f"config: rope scaling {self.kind!r} needs {name}")
        return _positive(f"rope scaling's {name}", value)


class Rope:
    """Turns queries and keys, the first `dim` items of each head. Made once a model, on its device."""

    def __init__(self, settings: RopeSettings, device: torch.device) -> None:
        frequencies, self._factor = settings.frequencies()
        self._frequencies = frequencies.to(device)
        self.dim = settings.dim

    def angles(self, positions_T: Tensor, dtype: torch.dtype) -> Angles:
        """Cosines, and sines with the sign of the rotation, each [T, 1, dim], computed in float32."""
        turns = positions_T.float()[:, None] * self._frequencies
        cos, sin = turns.cos() * self._factor, turns.sin() * self._factor
        return torch.cat((cos, cos), -1)[:, None].to(dtype), torch.cat((-sin, sin), -1)[:, None].to(dtype)


def turn(x_THD: Tensor, angles: Angles) -> Tensor:
    """Rotate each head's leading items, item i with item i + dim / 2; the rest passes."""
    cos, sin = angles
    dim = cos.shape[-1]
    turned, rest = x_THD[..., :dim], x_THD[..., dim:]
    turned = torch.addcmul(turned * cos, turned.roll(dim // 2, -1), sin)
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned


def from_pairs(x_THD: Tensor) -> Tensor:
    """Items that turn with their neighbour, brought to where `turn` has them: the first of each pair, then the second.

    Scores do not notice, when queries and keys are both brought there.
    """
    pairs = x_THD.view(*x_THD.shape[:-1], -1, 2)
    return pairs.transpose(-1, -2).reshape(x_THD.shape)


def _plain(settings: RopeSettings) -> Tensor:
    exponents = torch.arange(0, settings.dim, 2, dtype=torch.int64).float() / settings.dim
    return 1.0 / (settings.theta**exponents)


def _default(settings: RopeSettings) -> tuple[Tensor, float]:
    return _plain(settings), 1.0


def _linear(settings: RopeSettings) -> tuple[Tensor, float]:
    """Position interpolation (Chen et al. 2023): every position shrinks by the factor."""
    return _plain(settings) / settings.number("factor"), 1.0


def _dynamic(settings: RopeSettings) -> tuple[Tensor, float]:
    """NTK by current length: unchanged up to the trained context, which is as far as this engine serves it.

    Beyond, the base would grow with the sequence and every cached key would be turned wrongly.
    """
    settings.number("factor")
    return _plain(settings), 1.0


def _llama3(settings: RopeSettings) -> tuple[Tensor, float]:
    """Llama 3.1: long waves shrink by the factor, short ones stay, a ramp between."""
    factor, low, high = (settings.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    context = settings.number("original_max_position_embeddings")
    if high <= low:
        raise ModelError(f"config: rope scaling's high_freq_factor ({high}) must exceed low_freq_factor ({low})")
    plain = _plain(settings)
    turns = context * plain / (2 * math.pi)  # full turns within the trained context
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / factor), 1.0


def _yarn(settings: RopeSettings) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023): interpolate slow pairs, keep fast ones, and raise the attention's temperature."""
    context = settings.number("original_max_position_embeddings")
    factor = settings.number("factor", settings.max_positions / context)
    scaling, dim, theta = settings.scaling, settings.dim, settings.theta

    def pair_with(turns: float) -> float:
        """The (fractional) pair that turns so often within the trained context."""
        return dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_with(settings.number("beta_fast", 32)), pair_with(settings.number("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2).float() - low) / ((high - low) or 0.001)
    interpolated = ramp.clamp(0, 1)
    plain = _plain(settings)
    frequencies = plain / factor * interpolated + plain * (1 - interpolated)

    if scaling.get("attention_factor") is not None:
        return frequencies, settings.number("attention_factor")
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        weights = settings.number("mscale"), settings.number("mscale_all_dim")
        return frequencies, yarn_temperature(factor, weights[0]) / yarn_temperature(factor, weights[1])
    return frequencies, yarn_temperature(factor, 1.0)


def yarn_temperature(factor: float, weight: float) -> float:
    """What cosines and sines, or scores, are multiplied by in a context that was stretched by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(settings: RopeSettings) -> tuple[Tensor, float]:
    """LongRoPE (Ding et al. 2024): a divisor for each pair, one list within the trained context, one beyond.

    The second list would turn cached keys wrongly, so where the lists differ only the first serves.
    """
    lists = [settings.scaling.get(name) for name in ("short_factor", "long_factor")]
    for name, divisors in zip(("short_factor", "long_factor"), lists, strict=True):
        if not isinstance(divisors, list | tuple) or len(divisors) != settings.dim // 2:
            raise ModelError(f"config: rope scaling 'longrope' needs {settings.dim // 2} numbers in {name}")
    divisors = [_positive("rope scaling's short_factor", divisor) for divisor in lists[0] or ()]
    frequencies = _plain(settings) / torch.tensor(divisors)
    context = settings.number("original_max_position_embeddings")
    factor = settings.number("factor", settings.max_positions / context)
    if settings.scaling.get("attention_factor") is not None:
        return frequencies, settings.number("attention_factor")
    return frequencies, 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(context))


_KINDS: Mapping[str, Callable[[RopeSettings], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ModelError(f"config: {name} must be a positive number, found {value!r}")
    return float(value)
