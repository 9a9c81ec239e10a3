"""What `adapter_config.json` says: which linear maps an adapter changes, at what rank and how strongly.

`adapter_file` reads it before any tensor, on both sides of the link.

INVARIANT: a setting that would change the answer and is not obeyed is refused by name, also one that is not known.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021; Kalajdzievski, "A Rank Stabilization
Scaling Factor for Fine-Tuning with LoRA", 2023. The names, and which of several patterns holds, are PEFT's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from asyncpage.errors import FormatError

Value = TypeVar("Value")

MOST_PATTERNS = 1 << 12  # each is tried on every linear map; a name for every one of a large model is a thousand

# Said of training, of where the adapter comes from, or of something that another field turns on.
_WITHOUT_EFFECT = frozenset((
    "peft_type", "task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "peft_version",
    "lora_dropout", "megatron_core", "qalora_group_size", "ensure_weight_tying", "runtime_config", "eva_config",
    "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules",
    "layers_to_transform", "layers_pattern", "bias", "init_lora_weights", "fan_in_fan_out",
))  # fmt: skip

# What else may be asked for, in words; each is refused, and so is whatever is not known here.
_REFUSED: Mapping[str, str] = {
    "use_dora": "DoRA, which scales the whole weight",
    "modules_to_save": "modules that were trained whole",
    "trainable_token_indices": "changed embeddings",
    "lora_bias": "a bias of the adapter's own",
    "target_parameters": "parameters that belong to no linear map",
    "layer_replication": "layers that are there twice",
    "alora_invocation_tokens": "an adapter that begins at certain tokens",
    "megatron_config": "weights cut for several devices",
    "loftq_config": "base weights that were changed with the adapter (LoftQ)",
}

# These begin training with other base weights, so the tensors alone are not the whole change.
_PLAIN_BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal")

_PLAIN_NAME = re.compile(r"\^?(?:\w|\.|\\\.)+")
_LAYER = re.compile(r".*?\.[^.]*\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """`targets` or `excluded` None: a pattern, so the tensors alone say which are meant. `layers` None: all of them."""

    rank: int
    alpha: float
    is_rank_stabilised: bool
    rank_patterns: Sequence[tuple[re.Pattern[str], int]]
    alpha_patterns: Sequence[tuple[re.Pattern[str], float]]
    targets: frozenset[str] | None
    excluded: frozenset[str] | None
    layers: frozenset[int] | None

    @classmethod
    def parse(cls, found: Mapping[str, Any], file: str) -> AdapterSettings:
        """Errors: `FormatError` naming `file`, the field, what was found and what would do."""
        fields = _Fields(found, file)
        fields.refuse_others()
        targets = fields.modules("target_modules")
        if targets is not None and not targets:
            fields.wrong("target_modules", "names no module")
        layers = fields.layers()
        if targets is None and layers is not None:
            fields.wrong("layers_to_transform", "goes with a list of target_modules, not with a pattern")
        return cls(
            rank=fields.rank("r", found.get("r")),
            alpha=fields.alpha("lora_alpha", found.get("lora_alpha")),
            is_rank_stabilised=fields.flag("use_rslora"),
            rank_patterns=[(key, fields.rank("rank_pattern", rank)) for key, rank in fields.patterns("rank_pattern")],
            alpha_patterns=[(key, fields.alpha("alpha_pattern", a)) for key, a in fields.patterns("alpha_pattern")],
            targets=targets,
            excluded=fields.modules("exclude_modules"),
            layers=layers,
        )

    def rank_of(self, module: str) -> int:
        """The rank of its A and B."""
        return _first(self.rank_patterns, module, self.rank)

    def scale_of(self, module: str) -> float:
        """What the product of its A and B is multiplied by."""
        alpha, rank = _first(self.alpha_patterns, module, self.alpha), self.rank_of(module)
        return alpha / math.sqrt(rank) if self.is_rank_stabilised else alpha / rank

    def targets_module(self, module: str) -> bool | None:
        """Whether this adapter is to change it; None where only the tensors say."""
        if self.excluded is not None and _is_named(module, self.excluded):
            return False
        if self.targets is None:
            return None
        if not _is_named(module, self.targets):
            return False
        if self.layers is not None and module not in self.targets:  # a whole name says its layer itself
            layer = _LAYER.match(module)
            if layer is None or int(layer[1]) not in self.layers:
                return False
        return None if self.excluded is None else True


class _Fields:
    """The fields of one file, read one by one."""

    def __init__(self, found: Mapping[str, Any], file: str) -> None:
        self._found, self._file = found, file

    def wrong(self, name: str, reason: str) -> NoReturn:
        raise FormatError(self._file, name, reason)

    def refuse_others(self) -> None:
        found = self._found
        if found.get("peft_type") != "LORA":
            self.wrong("peft_type", f"is {_shown(found.get('peft_type'))}; only 'LORA' is run")
        if found.get("bias") not in (None, "none"):
            self.wrong("bias", f"is {_shown(found['bias'])}: changed biases are not supported; only 'none' is")
        if self.flag("fan_in_fan_out"):
            self.wrong("fan_in_fan_out", "is true, and no model here stores its weights that way")
        beginning = found.get("init_lora_weights")
        if not any(beginning is plain or beginning == plain for plain in _PLAIN_BEGINNINGS):
            self.wrong(
                "init_lora_weights",
                f"is {_shown(beginning)}, which changes the base weights too; save the adapter converted to plain LoRA",
            )
        for name, value in found.items():
            if name not in _WITHOUT_EFFECT and value not in (None, False, [], {}, "", 0):
                what = _REFUSED.get(name, "this setting")
                self.wrong(name[:100], f"is {_shown(value)}: {what} is not supported")

    def flag(self, name: str) -> bool:
        value = self._found.get(name)
        if value is not None and not isinstance(value, bool):
            self.wrong(name, f"found {_shown(value)}, true or false is needed")
        return bool(value)

    def rank(self, name: str, value: Any) -> int:
        if type(value) is not int or not 1 <= value <= 1 << 20:
            self.wrong(name, f"found {_shown(value)}, a rank of at least 1 is needed")
        return value

    def alpha(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
            self.wrong(name, f"found {_shown(value)}, a finite number is needed")
        return float(value)

    def modules(self, name: str) -> frozenset[str] | None:
        """The names in a list; None for a pattern, which is not run: it comes from a file and may take for ever."""
        value = self._found.get(name)
        if isinstance(value, str):
            return None
        if value is None and name != "target_modules":
            return frozenset()
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            self.wrong(name, f"found {_shown(value)}, a list of names or a pattern is needed")
        return frozenset(value)

    def layers(self) -> frozenset[int] | None:
        value = self._found.get("layers_to_transform")
        if value in (None, []):
            return None
        value = [value] if type(value) is int else value
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            self.wrong("layers_to_transform", f"found {_shown(value)}, numbers of layers are needed")
        if self._found.get("layers_pattern") not in (None, "", [], "layers", ["layers"]):
            self.wrong("layers_pattern", f"is {_shown(self._found['layers_pattern'])}; the layers are called 'layers'")
        return frozenset(value)

    def patterns(self, name: str) -> list[tuple[re.Pattern[str], Any]]:
        value = self._found.get(name)
        if value is None:
            return []
        if not isinstance(value, dict) or len(value) > MOST_PATTERNS:
            self.wrong(name, f"found {_shown(value)}, an object of names is needed")
        for key in value:
            if not _PLAIN_NAME.fullmatch(key):
                self.wrong(name, f"has the key {_shown(key)}; names are supported, other patterns are not")
        return [(re.compile(rf"(.*\.)?({key})$"), item) for key, item in value.items()]


def _first(patterns: Sequence[tuple[re.Pattern[str], Value]], module: str, otherwise: Value) -> Value:
    """What stands under the first of them that is the module's name or its end, in PEFT's reading."""
    return next((value for pattern, value in patterns if pattern.match(module)), otherwise)


def _is_named(module: str, names: frozenset[str]) -> bool:
    parts = module.split(".")
    return any(".".join(parts[at:]) in names for at in range(len(parts)))


def _shown(value: object) -> str:
    return repr(value)[:100]
