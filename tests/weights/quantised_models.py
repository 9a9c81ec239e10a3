"""Writes models as GPTQ, AWQ and FP8 folders, from the published layouts, one number after the other.

Each `pack_*` gives the stored tensors of one matrix; its true values are those of the same formula, in float32.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Packed:
    """Stored tensors by the end of their names, and what they mean: float32 [out, in]."""

    parts: dict[str, Tensor]
    truth: Tensor


Pack = Callable[[int, int, torch.Generator], Packed]


def words(numbers: list[list[int]]) -> Tensor:
    """Rows of 32-bit words, read as signed."""
    return torch.tensor([[word - (1 << 32) if word >> 31 else word for word in row] for row in numbers]).int()


def pack_row(items: list[int], bits: int, order: tuple[int, ...] | None = None) -> list[int]:
    """Items of one row as words, the first in the lowest bits; with `order`, its places are filled from there."""
    per_word = 32 // bits
    chosen = order or tuple(range(per_word))
    return [
        sum(items[start + source] << (bits * place) for place, source in enumerate(chosen))
        for start in range(0, len(items), per_word)
    ]


def grouped(items: Tensor, zeros: Tensor, scales: Tensor, group_of: Tensor) -> Tensor:
    """(integer - zero point) * scale of its group: [in, out] as [out, in]."""
    item, zero, scale = items.tolist(), zeros.tolist(), scales.tolist()
    return torch.tensor(
        [
            [(item[k][n] - zero[g][n]) * scale[g][n] for k, g in enumerate(group_of.tolist())]
            for n in range(items.shape[1])
        ]
    )


def gptq(
    bits: int = 4,
    group_size: int = 16,
    *,
    sym: bool = False,
    desc_act: bool = False,
    v2: bool = False,
    index: bool = True,
    scale_dtype: torch.dtype = torch.float16,
) -> Pack:
    def pack(outputs: int, inputs: int, random: torch.Generator) -> Packed:
        size = inputs if group_size == -1 else group_size
        groups = -(-inputs // size)
        group_of = torch.arange(inputs) // size
        if desc_act:
            group_of = group_of[torch.randperm(inputs, generator=random)]
        items = torch.randint(1 << bits, (inputs, outputs), generator=random)
        zeros = torch.randint(1 << bits, (groups, outputs), generator=random)
        if sym:
            zeros[:] = 1 << (bits - 1)
        scales = torch.rand(groups, outputs, generator=random).add(0.5).div(1 << bits).to(scale_dtype)
        truth = grouped(items, zeros, scales, group_of)
        ones = sum(1 << place for place in range(0, 32, bits))
        zero_words = [pack_row(row, bits) for row in zeros.tolist()]
        parts = {
            "qweight": words([pack_row(column, bits) for column in items.t().tolist()]).t().contiguous(),
            "qzeros": words([[(word - (0 if v2 else ones)) % (1 << 32) for word in row] for row in zero_words]),
            "scales": scales,
        }
        return Packed(parts | ({"g_idx": group_of.int()} if index else {}), truth)

    return pack


def awq(group_size: int = 16) -> Pack:
    def pack(outputs: int, inputs: int, random: torch.Generator) -> Packed:
        size = inputs if group_size == -1 else group_size
        groups = -(-inputs // size)
        items = torch.randint(16, (inputs, outputs), generator=random)
        zeros = torch.randint(16, (groups, outputs), generator=random)
        scales = torch.rand(groups, outputs, generator=random).add(0.5).div(16).half()
        truth = grouped(items, zeros, scales, torch.arange(inputs) // size)
        parts = {
            "qweight": words([pack_row(row, 4, AWQ_ORDER) for row in items.tolist()]),
            "qzeros": words([pack_row(row, 4, AWQ_ORDER) for row in zeros.tolist()]),
            "scales": scales,
        }
        return Packed(parts, truth)

    return pack


def fp8(
    block: tuple[int, int] | None = None, shape: str = "tensor", name: str = "weight_scale", *, static: bool = False
) -> Pack:
    """`shape` tensor, one, channel or column, where there is no block."""

    def pack(outputs: int, inputs: int, random: torch.Generator) -> Packed:
        weight = torch.randn(outputs, inputs, generator=random).mul(100).to(torch.float8_e4m3fn)
        high, wide = block or {"tensor": (outputs, inputs), "one": (outputs, inputs)}.get(shape, (1, inputs))
        grid = torch.rand(-(-outputs // high), -(-inputs // wide), generator=random).add(0.5).div(400)
        numbers, scales = weight.float().tolist(), grid.tolist()
        truth = [[numbers[n][k] * scales[n // high][k // wide] for k in range(inputs)] for n in range(outputs)]
        shapes = {"tensor": (), "one": (1,), "channel": (outputs,), "column": (outputs, 1)}
        parts = {"weight": weight, name: grid if block else grid.reshape(shapes[shape]).contiguous()}
        return Packed(parts | ({"input_scale": torch.tensor(0.5)} if static else {}), torch.tensor(truth))

    return pack


@dataclass
class Written:
    """A quantised folder, and the plain tensors that it stands for."""

    folder: Path
    stored: dict[str, Tensor]
    truth: dict[str, Tensor]
    config: dict[str, Any] = field(default_factory=dict)

    def save(self) -> None:
        """Write what `stored` and `config` hold now."""
        self.folder.mkdir(exist_ok=True)
        save_file(self.stored, self.folder / "model.safetensors")
        (self.folder / "config.json").write_text(json.dumps(self.config))


def write_quantised(
    model: PreTrainedModel, folder: Path, pack: Pack, settings: Mapping[str, Any], left_alone: tuple[str, ...] = ()
) -> Written:
    """`model` with every linear map but those whose name ends with one of `left_alone` replaced by a packed one.

    The model itself then has the packed one's values.
    """
    random = torch.Generator().manual_seed(7)
    stored: dict[str, Tensor] = {}
    linear = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not name.endswith(("lm_head", *left_alone))
    }
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name in linear:
                packed = pack(*tensor.shape, random)
                stem = name.removesuffix("weight")
                stored |= {f"{stem}{end}": part for end, part in packed.parts.items()}
                tensor.copy_(packed.truth)
            elif not (name == "lm_head.weight" and model.config.tie_word_embeddings):
                stored[name] = tensor.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own, about its settings
        config = json.loads(model.config.to_json_string(use_diff=False))
    config |= {"architectures": [type(model).__name__], "quantization_config": dict(settings)}
    written = Written(folder, stored, {name: tensor.clone() for name, tensor in model.state_dict().items()}, config)
    written.save()
    return written
