"""What a step of a model is made of on this device, told before a weight is read.

`asyncpage doctor` asks for it, and `step_clock` measures by it.

INVARIANT: it opens the model and chooses type and backend as loading does, so what it lists is what would run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from asyncpage.backends.device import present_device
from asyncpage.backends.registry import choose
from asyncpage.errors import UsageError
from asyncpage.executor.grids import outline_grids
from asyncpage.executor.runner import dtype_on
from asyncpage.formats.sentence_model import read_sentence_model
from asyncpage.models.decoder import Decoder
from asyncpage.models.operators import Block, Operator, list_operators
from asyncpage.models.probe import LAYERS
from asyncpage.models.registry import find_family, is_encoder, outline_encoder, outline_model
from asyncpage.models.stack import parts_called
from asyncpage.weights.checkpoint import Checkpoint, open_checkpoint

SAMPLING = "sampler.sample"
"""The key of the operator that the runner adds to a decoder's."""


@dataclass(frozen=True, slots=True)
class StepGraph:
    """`family`: what people call it; `groups`: block tables a row has, 0 for an encoder.

    `context`: tokens that the last of them sees; `tokens`: how many the list is for, see `OperatorList`.
    `stored_as`, `stored_bytes`: by an operator's key, what its weights are in the files; `stored_sizes`: by the name of
    each tensor that the model takes. `elements`: how many weights these are, `listed_elements` those that operators
    hold. `unused`: tensors of the files that it leaves. `is_stacked`: layers run as lists of native operators, and
    `called` tells which parts are called between these, by their place, and why.
    """

    family: str
    is_encoder: bool
    device: str
    backend: str
    dtype: str
    kv_dtype: str
    context: int
    tokens: int
    max_model_len: int
    vocab_size: int
    groups: int
    blocks: tuple[Block, ...]
    stored_as: Mapping[str, tuple[str, ...]]
    stored_bytes: Mapping[str, int]
    stored_sizes: Mapping[str, int]
    elements: int
    listed_elements: int
    unused: tuple[str, ...]
    is_stacked: bool
    called: Mapping[str, str]

    def listed_key(self, key: str) -> str:
        """The key under which the list has an operator of any layer."""
        words = key.split(".")
        if words[0] == LAYERS and len(words) > 1 and words[1].isdigit():
            number = int(words[1])
            words[1] = str(next((block.layers[0] for block in self.blocks if number in block.layers), number))
        return ".".join(words)


def read_step_graph(settings: Mapping[str, Any], context: int | None, *, most_context: int = 1024) -> StepGraph:
    """For the settings of a `Load`. `context`: None for the model's own, up to `most_context`.

    Errors: `ModelError` and `FormatError` for the files, `UsageError` for a setting.
    """
    checkpoint = open_checkpoint(Path(settings["model_path"]))
    try:
        return _read(checkpoint, settings, context, most_context)
    finally:
        checkpoint.close()


def _read(checkpoint: Checkpoint, settings: Mapping[str, Any], context: int | None, most_context: int) -> StepGraph:
    config, device = checkpoint.config, present_device(settings["device"])
    dtype = dtype_on(device, "float32" if settings.get("exact", False) else settings["dtype"])
    torch_dtype = getattr(torch, dtype)
    encodes = is_encoder(config)
    model: Any = (outline_encoder if encodes else outline_model)(config, torch_dtype).model
    kv_dtype = dtype if settings["kv_cache_dtype"] == "auto" else settings["kv_cache_dtype"]
    longest = model.max_model_len
    if encodes:
        longest = min(longest, read_sentence_model(Path(settings["model_path"])).max_tokens or longest)
    if context is not None and context > longest:
        raise UsageError(f"--context {context} is more than the {longest} tokens that this model takes; lower it")
    context = context or min(most_context, longest)
    backend = "torch"
    if not encodes:
        backend = choose(settings["attention_backend"], model.specs(kv_dtype, settings["block_size"]), device).name
    stored = {name: checkpoint.stored(name) for name in checkpoint.names}

    def stored_as(name: str) -> str:
        return stored[name].kind if name in stored else "missing"

    grids = None if encodes else outline_grids(settings, checkpoint, device, dtype)
    stacked = None if grids is None else outline_model(config, torch_dtype, grids=grids).model
    found = list_operators(
        config,
        torch_dtype,
        stored_as,
        context=context,
        kv_dtype=kv_dtype,
        block_size=settings["block_size"],
        grids=grids,
    )
    kinds: dict[str, tuple[str, ...]] = {}
    sizes: dict[str, int] = {}
    for block in found.blocks:
        for one in block.operators:
            kinds[one.key] = tuple(dict.fromkeys(map(stored_as, one.tensors)))
            sizes[one.key] = sum(stored[name].size for name in one.tensors if name in stored) // block.times
    return StepGraph(
        family=find_family(config).name,
        is_encoder=encodes,
        device=str(device),
        backend=backend,
        dtype=dtype,
        kv_dtype="none" if encodes else kv_dtype,
        context=context,
        tokens=found.tokens,
        max_model_len=longest,
        vocab_size=model.vocab_size,
        groups=0 if encodes else len(model.groups),
        blocks=found.blocks if encodes else _with_sampling(found.blocks, model.vocab_size),
        stored_as=kinds,
        stored_bytes=sizes,
        stored_sizes={name: stored[name].size for name in found.sizes if name in stored},
        elements=found.elements,
        listed_elements=found.listed_elements,
        unused=tuple(name for name in checkpoint.names if name not in found.sizes),
        is_stacked=isinstance(stacked, Decoder),
        called=parts_called(stacked) if isinstance(stacked, Decoder) else {},
    )


def _with_sampling(blocks: tuple[Block, ...], vocab_size: int) -> tuple[Block, ...]:
    last = blocks[-1]
    sampling = Operator(SAMPLING, "", (1, vocab_size), (1,))
    return (*blocks[:-1], Block(last.layers, (*last.operators, sampling)))
