"""Finds the family that serves a config, the built-in ones and those of entry points, and builds its model.

Called by the executor when it loads. An entry point of `asyncpage.models` is named by the `model_type` it serves;
`family.Family` says what it must be.

INVARIANT: a family is loaded only for a config of its own model type, so a broken plug-in stops nobody else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Generic, TypeVar, cast

import torch

from asyncpage.core.plugin_group import PluginGroup, breaches_of_method
from asyncpage.errors import ModelError
from asyncpage.models.bert import Bert
from asyncpage.models.config import Config
from asyncpage.models.deepseek_v2 import DeepseekV2
from asyncpage.models.encoder import Encoder
from asyncpage.models.experts import AllHere, ExpertHost, ExpertRows, MakeExpert
from asyncpage.models.family import API, Family
from asyncpage.models.gemma2 import Gemma2
from asyncpage.models.gemma3 import Gemma3
from asyncpage.models.llama import Llama
from asyncpage.models.mistral import Mistral
from asyncpage.models.mixtral import Mixtral
from asyncpage.models.model import Model
from asyncpage.models.olmo2 import Olmo2
from asyncpage.models.parameter import Adapt, Label, Parameters, TakeTensor
from asyncpage.models.phi3 import Phi3
from asyncpage.models.quantised_linear import Grids
from asyncpage.models.qwen2 import Qwen2
from asyncpage.models.qwen2_moe import Qwen2Moe
from asyncpage.models.qwen3 import Qwen3
from asyncpage.models.qwen3_moe import Qwen3Moe
from asyncpage.models.smollm3 import SmolLM3

Built = TypeVar("Built")

BUILT_IN: dict[str, type[Family]] = {
    "llama": Llama,
    "mistral": Mistral,
    "ministral": Mistral,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
    "gemma2": Gemma2,
    "gemma3_text": Gemma3,
    "phi3": Phi3,
    "smollm3": SmolLM3,
    "olmo2": Olmo2,
    "mixtral": Mixtral,
    "qwen2_moe": Qwen2Moe,
    "qwen3_moe": Qwen3Moe,
    "deepseek_v2": DeepseekV2,
    "bert": Bert,
}
"""Families by model type."""

INSTALL = "pip install 'asyncpage[transformers]'"
"""What to type where another library's code may run a model."""


def _breaches(family: Any) -> tuple[str, ...]:
    kind, served = getattr(family, "kind", None), getattr(family, "architectures", None)
    is_listed = isinstance(served, tuple) and served and all(isinstance(name, str) for name in served)
    return (
        *(() if kind in ("decoder", "encoder") else (f"'kind' must be 'decoder' or 'encoder', found {kind!r}",)),
        *(() if is_listed else (f"'architectures' must be a tuple of names, found {served!r}",)),
        *breaches_of_method(family, "build", ("self", "config", "parameters")),
    )


FAMILIES: PluginGroup[Family] = PluginGroup(
    "asyncpage.models", what="model family", flag=None, api=API, built_in=BUILT_IN, breaches=_breaches
)


@dataclass(frozen=True, slots=True)
class Outline(Generic[Built]):
    """A model without its weights: `model` tells its shapes. `weight_bytes`: what the weights will take.

    `experts`: how many each layer has, by its index; layers without are not there. `family`: what people call it.
    """

    model: Built
    weight_bytes: int
    experts: Mapping[int, int]
    family: str


class _Census:
    """An `ExpertHost` that counts."""

    def __init__(self) -> None:
        self.experts: dict[int, int] = {}

    def place(self, layer: int, count: int, make: MakeExpert, parameters: Parameters) -> ExpertRows:
        self.experts[layer] = count
        return AllHere().place(layer, count, make, parameters)


def is_encoder(config: Config) -> bool:
    """Whether `config` names an encoder. Errors: `ModelError` when nobody serves it, as `build_model`."""
    return find_family(config).kind == "encoder"


def build_model(
    config: Config,
    tensor: TakeTensor | None,
    dtype: torch.dtype,
    device: torch.device | str,
    *,
    held: torch.dtype | None = None,
    adapt: Adapt | None = None,
    experts: ExpertHost | None = None,
    names: Sequence[str] = (),
    grids: Grids | None = None,
) -> Model:
    """The decoder that `config` (a config.json's vocabulary) names, its weights taken by `tensor(name)`.

    `held`: the type of its matrices in memory, by default `dtype`. `adapt`: see `Parameters`. `experts`: who runs its
    experts, None for this process. Without `tensor` nothing but what they make has values. `names`: of
    all tensors that there are. `grids`: see `Parameters`.
    Errors: `ModelError` for an architecture, option or tensor that does not fit, by name; `UsageError` for a plug-in
    that is broken.
    """
    parameters = Parameters(tensor, dtype, device, held=held, adapt=adapt, experts=experts, names=names, grids=grids)
    return cast(Model, find_family(config).build(config, parameters))


def build_encoder(config: Config, tensor: TakeTensor, dtype: torch.dtype, device: torch.device | str) -> Encoder:
    """The encoder that `config` names. Errors: as `build_model`."""
    return cast(Encoder, find_family(config).build(config, Parameters(tensor, dtype, device)))


def outline_model(
    config: Config,
    dtype: torch.dtype,
    *,
    held: torch.dtype | None = None,
    label: Label | None = None,
    grids: Grids | None = None,
) -> Outline[Model]:
    """The decoder that `config` names, before a tensor is read. `held`, `label`, `grids`: see `Parameters`.

    Errors: as `build_model`.
    """
    return cast(Outline[Model], _outline(config, dtype, held, label, grids))


def outline_encoder(config: Config, dtype: torch.dtype, *, label: Label | None = None) -> Outline[Encoder]:
    """The encoder that `config` names, before a tensor is read. Otherwise as `outline_model`."""
    return cast(Outline[Encoder], _outline(config, dtype, None, label, None))


def _outline(
    config: Config, dtype: torch.dtype, held: torch.dtype | None, label: Label | None, grids: Grids | None
) -> Outline[Any]:
    census = _Census()
    parameters = Parameters(None, dtype, held=held, experts=census, label=label, grids=grids)
    family = find_family(config)
    model = family.build(config, parameters)
    return Outline(model, parameters.taken_bytes, census.experts, family.name)


def has_family(config: Config) -> bool:
    """Whether the config's `model_type` has a family, here or by a plug-in: its models are made of parts like ours."""
    return config.get("model_type") in FAMILIES.names()


def find_family(config: Config) -> Family:
    """The family of the config's `model_type`, if it serves one of its `architectures`.

    A model type that has no family may run through transformers, where that is installed.
    Errors: `ModelError` when there is none, with what is served; `UsageError` for a plug-in that is broken.
    """
    model_type, named, refusal = config.get("model_type"), config.get("architectures") or [], _refusal(config)
    if has_family(config):
        family = FAMILIES.load(str(model_type))
        if not named or set(named) & set(family.architectures):
            return family
        raise ModelError(refusal)
    if find_spec("transformers") is None:
        raise ModelError(f"{refusal}; {INSTALL} may run it")
    # Only where it is needed: it takes seconds and much memory.
    try:
        from asyncpage.models.transformers_family import TransformersFamily, unserved
    except ImportError as error:  # another version than the extra's
        raise ModelError(f"{refusal}; {INSTALL} may run it, what is installed does not: {error}") from error
    reason = unserved(config)
    if reason:
        raise ModelError(f"{refusal}; {reason}")
    return TransformersFamily()


def _refusal(config: Config) -> str:
    found = " or ".join(map(str, config.get("architectures") or [])) or "unnamed"
    known = dict.fromkeys(name for family in BUILT_IN.values() for name in family.architectures)
    others = [name for name in FAMILIES.names() if name not in BUILT_IN]
    return (
        f"model architecture {found} of model type {config.get('model_type')!r} is not supported; "
        f"supported are {', '.join(known)}" + (f" and, by plug-ins, model type {', '.join(others)}" if others else "")
    )
