"""Runs any causal model of the transformers library of which there is no family here, where the library is installed.

`registry` comes here last. The library's classes are made of what the config says; their tensors come through our own
readers, and the library puts them where they belong: it knows the names of older files, ties and merges weights, and
makes the buffers that files do not hold. Code that a model brings along is never run.

INVARIANT: every tensor of the files is used and none of the model is left to chance; a model that is loaded has been
compared with its own attention (`transformers_trial`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from asyncpage.errors import AsyncpageError, ModelError
from asyncpage.models.config import Config
from asyncpage.models.parameter import Parameters
from asyncpage.models.transformers_attention import NAME
from asyncpage.models.transformers_model import TransformersModel
from asyncpage.models.transformers_trial import compare, own_logits

LIBRARY = f"transformers {transformers.__version__}"

MAX_LAYERS = 1 << 10  # each is put together before a tensor is looked for

_LISTENING = torch.bfloat16
"""The type of models without values: grouped products of experts are told their shapes in this one only."""

_CLASSES = {name: of for name, of in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if isinstance(of, str)}
"""Names of the library's classes, by model type."""

_CHOICES = ("attn_implementation", "experts_implementation", "_implementation_internal")

_ROPE_TYPES = {"default", *ROPE_INIT_FUNCTIONS}

_KINDS = {"full_attention", "sliding_attention"}


class TransformersFamily:
    """See `family.Family`; of models for which `unserved` has no reason."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = f"runs through {LIBRARY}"
    kind: ClassVar[Literal["decoder", "encoder"]] = "decoder"
    architectures: ClassVar[tuple[str, ...]] = tuple(_CLASSES.values())

    def build(self, config: Config, parameters: Parameters) -> TransformersModel:
        name = _CLASSES[config["model_type"]]
        with _told(name):
            of = getattr(transformers, name)
            if parameters.held != parameters.dtype:
                raise ModelError("its code has no --weights-dtype beside --dtype; leave it out")
            settings = _settings(of, config)
            if not parameters.has_values:
                with torch.device("meta"):
                    module = of._from_config(settings, attn_implementation=NAME, dtype=_LISTENING).eval()
                parameters.taken_bytes += parameters.dtype.itemsize * module.num_parameters()
                return TransformersModel(module, parameters.dtype, _positions(settings))
            module = _load(of, settings, parameters)
            own = own_logits(module)  # before the module is made one of ours
            model = TransformersModel(module, parameters.dtype, _positions(settings))
            compare(module, model, own)
        return model


def unserved(config: Config) -> str | None:
    """Why this library does not run the model either; None when it may."""
    model_type, named = config.get("model_type"), config.get("architectures") or []
    name = _CLASSES.get(str(model_type))
    if name is None:
        own_code = ", and code that a model brings along is never run" if config.get("auto_map") else ""
        return f"{LIBRARY} has no causal language model of this type either{own_code}"
    if named and name not in named:
        return f"{LIBRARY} runs {name} of this type"
    return None


def _load(of: Any, settings: Any, parameters: Parameters) -> Any:
    stored = {name: _Stored(parameters, name) for name in parameters.names}
    with _quiet():
        module, told = of.from_pretrained(
            None,
            config=settings,
            state_dict=stored,
            dtype=parameters.dtype,
            attn_implementation=NAME,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are told of below
        )
    for kind, names in (("missing", told["missing_keys"]), ("not of this model", told["unexpected_keys"])):
        if names:
            first, *more = sorted(names)
            others = f" and {len(more)} others are" if more else " is"
            raise ModelError(f"tensor {first}{others} {kind}; the files do not hold the model that their config names")
    for name, found, needed in sorted(told["mismatched_keys"]):
        raise ModelError(f"tensor {name} has shape {list(found)}, the config asks for {list(needed)}")
    if told["error_msgs"]:
        raise ModelError(f"tensors do not fit: {told['error_msgs']!r:.300}")
    return module.to(parameters.device).eval()


class _Stored:
    """A tensor of the checkpoint, read when the library takes it, by the way it takes one of its own open files."""

    def __init__(self, parameters: Parameters, name: str) -> None:
        self._parameters, self._name = parameters, name

    def __getitem__(self, where: Any) -> Tensor:
        return self._parameters.read(self._name)[where]


def _settings(model: Any, config: Config) -> Any:
    """The library's own config. Errors: `ModelError` for what is not obeyed here."""
    if "AutoModelForCausalLM" in (config.get("auto_map") or {}):
        raise ModelError(
            f"its auto_map asks for code that the model brings along, and such code is never run; where {LIBRARY} has "
            "the same model in its own code, remove auto_map from config.json"
        )
    if config.get("fusion_config") is not None:
        raise ModelError("config: fusion_config is not supported; null is")
    # Weights come dequantised, and which code of the library computes what is decided here.
    words = {
        name: value
        for name, value in config.items()
        if name not in ("quantization_config", "fusion_config") and not name.endswith(_CHOICES)
    }
    with _quiet():
        settings = CONFIG_MAPPING[config["model_type"]].from_dict(words)
    for rope in _ropes(settings):
        if rope.get("rope_type", "default") not in _ROPE_TYPES:
            raise ModelError(f"config: rope type {rope['rope_type']!r} is not supported")
    if getattr(settings, "num_hidden_layers", 0) > MAX_LAYERS:
        raise ModelError(f"config: {settings.num_hidden_layers} layers are more than any model has")
    settings.return_dict, settings.use_cache = True, False
    settings.output_attentions = settings.output_hidden_states = False
    if settings.is_encoder_decoder or getattr(settings, "add_cross_attention", False):
        raise ModelError("it attends to an encoder, and there is none here")
    if any(rope.get("rope_type") == "dynamic" for rope in _ropes(settings)):
        raise ModelError("config: rope scaling 'dynamic' is not supported, as it turns all by the longest of a batch")
    if type(settings).sub_configs:
        raise ModelError(f"it is put together of several models ({', '.join(type(settings).sub_configs)})")
    if model._is_stateful:
        raise ModelError("it keeps a state of its own beside keys and values")
    others = sorted(set(getattr(settings, "layer_types", None) or ()) - _KINDS)
    if others:
        raise ModelError(f"it has layers of {', '.join(others)}; {' and '.join(sorted(_KINDS))} are run")
    if not model._supports_attention_backend:
        raise ModelError("its attention cannot be replaced: it is not called through the library's attention interface")
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise ModelError("it takes no positions, and counts tokens itself")
    return settings


def _positions(settings: Any) -> int:
    """The context; where turns depend on a sequence's length, its part in which they do not."""
    most = getattr(settings, "max_position_embeddings", None)
    if type(most) is not int or most < 1:
        raise ModelError(f"config: max_position_embeddings must be a positive whole number, found {most!r}")
    for rope in _ropes(settings):
        if rope.get("rope_type") == "longrope":
            most = min(most, int(rope["original_max_position_embeddings"]))
    return most


def _ropes(settings: Any) -> list[Mapping[str, Any]]:
    """The ways to turn positions: one, or one for each kind of layer."""
    ropes = getattr(settings, "rope_parameters", None) or {}
    return [ropes, *(value for value in ropes.values() if isinstance(value, dict))]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's own reports of what it loads."""
    level, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bar:
            logging.enable_progress_bar()


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Errors by the name of the model; the library's own become `ModelError`, whatever they are."""
    try:
        yield
    except AsyncpageError as error:
        raise ModelError(f"{name} cannot run through {LIBRARY}: {error}") from error
    except Exception as error:
        text = " ".join(str(error).split())[:500]
        raise ModelError(f"{name} cannot run through {LIBRARY}: {type(error).__name__}: {text}") from error
