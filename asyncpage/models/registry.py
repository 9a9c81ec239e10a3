"""Which class runs which architecture. Called by the executor when it loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asyncpage.errors import ModelError
from asyncpage.models.bert import BertConfig, BertModel
from asyncpage.models.config import ModelConfig
from asyncpage.models.encoder import Encoder
from asyncpage.models.llama import LlamaModel
from asyncpage.models.model import Model
from asyncpage.models.parameter import Parameters


@dataclass(frozen=True, slots=True)
class Architecture:
    """`model_type` is its other name; `windowed`: it obeys `sliding_window`."""

    model_type: str
    build: Callable[[ModelConfig, Parameters], Model]
    windowed: bool = False


ARCHITECTURES: Mapping[str, Architecture] = {
    "LlamaForCausalLM": Architecture("llama", LlamaModel),
    "MistralForCausalLM": Architecture("mistral", LlamaModel, windowed=True),
    "MinistralForCausalLM": Architecture("ministral", LlamaModel, windowed=True),
}


ENCODERS: Mapping[str, str] = {"BertModel": "bert"}
"""Encoders by architecture, with their model types."""


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether `config` names an encoder; other heads on the same layers make other answers, and are not one."""
    named = config.get("architectures") or []
    return any(name in ENCODERS for name in named) or (not named and config.get("model_type") in ENCODERS.values())


def build_encoder(
    config: Mapping[str, Any], tensor: Callable[[str], Tensor], dtype: torch.dtype, device: torch.device | str
) -> Encoder:
    """The encoder that `config` names, its weights taken by `tensor(name)`. Errors: `ModelError`, as `build_model`."""
    return BertModel(BertConfig.parse(config), Parameters(tensor, dtype, torch.device(device)))


def build_model(
    config: Mapping[str, Any], tensor: Callable[[str], Tensor], dtype: torch.dtype, device: torch.device | str
) -> Model:
    """The model that `config` (a config.json's vocabulary) names, its weights taken by `tensor(name)`.

    Errors: `ModelError` for an architecture, option or tensor that does not fit, by name.
    """
    name = _architecture(config)
    architecture = ARCHITECTURES[name]
    parsed = ModelConfig.parse(name, config, windowed=architecture.windowed)
    return architecture.build(parsed, Parameters(tensor, dtype, torch.device(device)))


def _architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures") or []
    for name in named:
        if name in ARCHITECTURES:
            return str(name)
    model_type = config.get("model_type")
    if not named:
        for name, architecture in ARCHITECTURES.items():
            if architecture.model_type == model_type:
                return name
    found = ", ".join(map(str, named)) or f"model type {model_type!r}"
    known = ", ".join((*ARCHITECTURES, *ENCODERS))
    raise ModelError(f"model architecture {found} is not supported; supported are {known}")
