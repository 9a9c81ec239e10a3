"""A model as the list of operators that a step runs, with what each reads and computes for a token.

The list is not a description of a family: the model is built without values and run for one token, one layer of each
kind, and the parts that work are what is listed (`probe`, `tally`). The executor asks for it (`step_graph`).

INVARIANT: every weight that the model takes of its checkpoint belongs to an operator of the list, or is counted as
belonging to none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from asyncpage.backends.contract import ITEM_BYTES, AttentionSpec
from asyncpage.errors import ModelError
from asyncpage.models.config import Config
from asyncpage.models.fold import StoredAs, fold_layers
from asyncpage.models.labelled import Labelled
from asyncpage.models.model import Attend, Model
from asyncpage.models.probe import LAYERS, Probe, Prober
from asyncpage.models.quantised_linear import Grids
from asyncpage.models.registry import Outline, find_family, has_family, is_encoder, outline_encoder, outline_model
from asyncpage.models.tally import Line, Shape, Tally


@dataclass(frozen=True, slots=True)
class Operator:
    """One thing that a step does. `key`: the part that does it; `part`: the part's class, "" for what is none.

    `taken`, `given`: shapes of activations. `weights`: shapes of what one such part holds, of which there are `parts`
    and a token goes through `used`. `elements`: weights of the checkpoint; `tensors`: their names there, in all layers
    that are alike. `held_as`, `held_bytes`: as they are in memory. `read_bytes`: of weights, for one token; a step of
    more tokens reads the same ones once. `kv_read_bytes`, `kv_written_bytes`: a token's. `flops`: the same, each
    multiplication and each addition of products.
    """

    key: str
    part: str
    taken: Shape
    given: Shape
    weights: tuple[Shape, ...] = ()
    parts: int = 1
    used: int = 1
    elements: int = 0
    tensors: tuple[str, ...] = ()
    held_as: tuple[str, ...] = ()
    held_bytes: int = 0
    read_bytes: int = 0
    kv_read_bytes: int = 0
    kv_written_bytes: int = 0
    flops: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Operators that follow one another: of `layers`, which are alike, the first one's; or, without, of the whole."""

    layers: tuple[int, ...]
    operators: tuple[Operator, ...]

    @property
    def tensors(self) -> Iterator[str]:
        """What its operators are made of, in the words of the checkpoint."""
        for operator in self.operators:
            yield from operator.tensors

    @property
    def times(self) -> int:
        """How often a step runs it."""
        return len(self.layers) or 1


@dataclass(frozen=True, slots=True)
class OperatorList:
    """`tokens`: how many were run, 1 for a decoder and a whole prompt for an encoder, which sees all of it at once.

    `elements`: weights that the model takes of its checkpoint, `sizes` by their names there.
    """

    blocks: tuple[Block, ...]
    tokens: int
    elements: int
    sizes: Mapping[str, int]

    @property
    def listed_elements(self) -> int:
        """Weights that operators hold, each counted once however many use it."""
        return sum(self.sizes[name] for name in {name for one in self.blocks for name in one.tensors})


def list_operators(
    config: Config,
    dtype: torch.dtype,
    stored_as: StoredAs,
    *,
    context: int,
    kv_dtype: str,
    block_size: int,
    grids: Grids | None = None,
) -> OperatorList:
    """For a token at the end of `context` tokens. `grids`: of weights that are not dequantised, as in `Parameters`.

    Errors: `ModelError` for a config that nobody serves, or that another library's code does, of whose parts nothing
    is known here.
    """
    if not has_family(config):
        raise ModelError(f"this model {find_family(config).name}, whose operators are not told apart")
    sizes: dict[str, int] = {}

    def label(names: Sequence[str], tensor: Tensor) -> Tensor:
        if len(names) == 1:
            sizes[names[0]] = tensor.numel()
        return Labelled.of(names, tensor)

    encodes = is_encoder(config)
    outline: Outline[Any] = (
        outline_encoder(config, dtype, label=label)
        if encodes
        else outline_model(config, dtype, label=label, grids=grids)
    )
    folds = fold_layers(outline.model, stored_as)
    tally = Tally()
    whole, prober = Prober(tally), Prober(tally, [numbers[0] for numbers in folds])
    whole.probe(outline.model)
    probed = prober.probe(outline.model)
    weights = {path: [one for one in own if isinstance(one, Labelled)] for path, own in whole.tensors.items()}
    tally.own(tensor for tensors in weights.values() for tensor in tensors)
    notes: dict[str, str] = {}
    tokens = torch.zeros(context if encodes else 1, dtype=torch.int64)
    with torch.no_grad(), tally.counting():
        if encodes:
            probed.encode(tokens, [context])
        else:
            _advance(probed, tokens, context, _attend(outline.model, tally, notes, context, kv_dtype, block_size))
    lines = sorted((line for line in tally.lines.values() if line.place is not None), key=lambda line: line.place or 0)
    blocks = []
    for first, group in groupby(lines, lambda line: _layer(line.key)):
        alike = next((numbers for numbers in folds if str(numbers[0]) == first), ())
        operators = tuple(_operator(line, alike, prober, weights, sizes, notes.get(line.key, "")) for line in group)
        blocks.append(Block(alike, operators))
    return OperatorList(tuple(blocks), len(tokens), sum(sizes.values()), sizes)


def _advance(probed: Probe, tokens: Tensor, context: int, attend: Attend) -> None:
    positions = torch.full_like(tokens, context - 1)
    probed.logits(probed.forward(tokens, positions, attend))


def _attend(model: Model, tally: Tally, notes: dict[str, str], context: int, kv_dtype: str, block_size: int) -> Attend:
    """Attention that is counted and not computed: its work is a backend's, and is in the shapes."""
    specs = model.specs(kv_dtype, block_size)

    def attend(layer: int, q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> Tensor:
        spec = specs[model.layer_groups[layer]]
        row = _row_bytes(spec)
        seen = min(context, spec.window or context)
        out_THV = torch.zeros(*q_THD.shape[:2], v_TGD.shape[2], dtype=q_THD.dtype)
        tally.enter(".write_kv", "")
        tally.work().kv_written_bytes += row * len(k_TGD)
        tally.leave((k_TGD,), None)
        tally.enter(".run", "")
        line = tally.work()
        line.kv_read_bytes += row * seen
        line.flops += 2 * spec.q_heads * (spec.head_dim + spec.v_head_dim) * seen
        notes[line.key] = _note(spec)
        tally.leave((q_THD,), out_THV)
        return out_THV

    return attend


def _note(spec: AttentionSpec) -> str:
    heads = f"{spec.q_heads} heads over {spec.kv_heads}"
    window = f", window {spec.window}" if spec.window else ""
    return f"{spec.kind}, {heads}{window}{f', soft cap {spec.softcap:g}' if spec.softcap else ''}"


def _row_bytes(spec: AttentionSpec) -> int:
    """What the cache keeps of a token in a layer."""
    items = spec.head_dim if spec.kind == "mla" else spec.head_dim + spec.v_head_dim
    return spec.kv_heads * items * ITEM_BYTES[spec.kv_dtype]


def _operator(
    line: Line,
    alike: Sequence[int],
    prober: Prober,
    weights: Mapping[str, Sequence[Labelled]],
    sizes: Mapping[str, int],
    note: str,
) -> Operator:
    is_part = line.key.startswith(line.path) and (line.path or "." not in line.key)
    own = weights.get(line.path, ()) if is_part else ()
    names = _names(own)
    below = line.path.removeprefix(f"{LAYERS}.{alike[0]}") if alike else ""
    others = [weights.get(f"{LAYERS}.{number}{below}", ()) for number in alike[1:]] if is_part else []
    parts = prober.counts[line.path] if is_part else 1
    held = prober.held.get(line.path, []) if is_part else []
    shown_bytes = sum(tensor.numel() * tensor.itemsize for tensor in own)
    held_bytes = sum(one.size for one in held) or shown_bytes
    return Operator(
        key=line.key,
        part=prober.classes[line.path] if is_part else "",
        taken=line.taken,
        given=line.given,
        weights=tuple(tuple(tensor.shape) for tensor in own[: len(own) // parts]),
        parts=parts,
        used=min(line.calls, parts),
        elements=sum(sizes[name] for name in names),
        tensors=(*names, *(name for other in others for name in _names(other))),
        held_as=tuple(dict.fromkeys([one.kind for one in held] or [str(one.dtype)[len("torch.") :] for one in own])),
        held_bytes=held_bytes,
        # What was counted is of the same weights in the type that is computed in.
        read_bytes=line.read_bytes * held_bytes // shown_bytes if held else line.read_bytes,
        kv_read_bytes=line.kv_read_bytes,
        kv_written_bytes=line.kv_written_bytes,
        flops=line.flops,
        note=note,
    )


def _names(tensors: Sequence[Labelled]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for tensor in tensors for name in tensor.labels))


def _layer(key: str) -> str:
    """The number of the layer that a key is of, "" for none."""
    first, _, rest = key.partition(".")
    return rest.partition(".")[0] if first == LAYERS else ""
