"""FP8 weights: e4m3 numbers with one scale for the tensor, for each output, or for each block.

`X.weight` float8 [out, in], and `X.weight_scale_inv` or `X.weight_scale`: what it is multiplied by, in spite of the
first one's name. `QuantisedFolder` chooses it for `quant_method: fp8` and for `compressed-tensors` in the format
`float-quantized`.

INVARIANT: weights are exact products; activations keep the compute type. Schemes for them (dynamic, or static by
`X.input_scale`) say how a unit for FP8 would round them, and a device that dequantises has none.

Source: the DeepSeek-V3 technical report, 2024, section 3.3, and its notes on FP8 weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from asyncpage.weights.quantisation import CHUNK_ITEMS, Fields
from asyncpage.weights.stored_tensors import FLOATS, StoredTensors

TYPE = "F8_E4M3"

Strategy = Literal["tensor", "channel", "block"]
_STRATEGIES: tuple[Strategy, ...] = ("tensor", "channel", "block")


@dataclass(frozen=True, slots=True)
class Fp8:
    """`strategies`: what scales there may be. `block`: rows and columns of one, where they are by block."""

    strategies: frozenset[Strategy]
    block: tuple[int, int] | None

    @classmethod
    def parse(cls, config: Mapping[str, Any], file: str) -> Fp8:
        """Of `quant_method: fp8`. Errors: `FormatError` naming a field that is wrong or not obeyed."""
        fields = Fields(config, file)
        fields.refuse_unless(
            fmt=("e4m3",), activation_scheme=("dynamic", "static"), expert_dtype=("fp8",), kv_cache_scheme=()
        )
        block = fields.block("weight_block_size")
        return cls(frozenset(("tensor", "channel") if block is None else ("tensor", "block")), block)

    @classmethod
    def parse_compressed(cls, config: Mapping[str, Any], file: str) -> Fp8:
        """Of `quant_method: compressed-tensors`. Errors: `FormatError` naming a field that is wrong or not obeyed."""
        fields = Fields(config, file)
        fields.refuse_unless(
            format=("float-quantized",), kv_cache_scheme=(), transform_config=({},),
            quantization_status=("compressed", "frozen"),
        )  # fmt: skip
        sparsity = config.get("sparsity_config")
        if sparsity and (not isinstance(sparsity, dict) or sparsity.get("format") not in (None, "dense")):
            raise fields.error("sparsity_config", "is of another format than dense, which is not supported")
        groups = config.get("config_groups")
        if not isinstance(groups, dict) or not groups:
            raise fields.error("config_groups", "is not an object of groups")
        found = [_parse_group(name, group, file) for name, group in groups.items()]
        blocks = {block for _, block in found if block is not None}
        if len(blocks) > 1:
            raise fields.error("config_groups", "has blocks of several sizes, which is not supported")
        return cls(frozenset(strategy for strategy, _ in found), next(iter(blocks), None))

    @property
    def label(self) -> str:
        return "FP8 (e4m3, weights only)"

    def find(self, stored: StoredTensors) -> dict[str, Fp8Weight]:
        ends = (".weight_scale_inv", ".weight_scale")
        scaled = {name[: name.rindex(".")] for name in stored.infos if name.endswith(ends)}
        narrow = {
            name.removesuffix(".weight")
            for name, info in stored.infos.items()
            if info.dtype == TYPE and name.endswith(".weight")
        }
        return {f"{stem}.weight": self._weight(stored, stem) for stem in sorted(scaled | narrow)}

    def _weight(self, stored: StoredTensors, stem: str) -> Fp8Weight:
        rows, columns = stored.info(f"{stem}.weight", (TYPE,), dimensions=2).shape
        names = [name for name in (f"{stem}.weight_scale_inv", f"{stem}.weight_scale") if name in stored.infos]
        if len(names) != 1:
            found = "none" if not names else "both"
            raise stored.error(f"{stem}.weight", f"needs one of weight_scale_inv and weight_scale, and has {found}")
        (scale,) = names
        shape = stored.info(scale, FLOATS).shape
        shapes: dict[tuple[int, ...], tuple[int, int]] = {}
        if self.block is not None and "block" in self.strategies:
            high, wide = self.block
            shapes[-(-rows // high), -(-columns // wide)] = self.block
        if "channel" in self.strategies:
            shapes |= dict.fromkeys(((rows,), (rows, 1)), (1, max(1, columns)))
        if "tensor" in self.strategies:
            shapes |= dict.fromkeys(((), (1,), (1, 1)), (max(1, rows), max(1, columns)))
        if shape not in shapes:
            known = " or ".join(str(list(one)) for one in shapes)
            raise stored.error(scale, f"has shape {list(shape)}, {known} is needed for a weight of {[rows, columns]}")
        beside = f"{stem}.input_scale"
        return Fp8Weight(stem, rows, columns, scale, shapes[shape], (beside,) if beside in stored.infos else ())


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """See `QuantisedWeight`. `block`: rows and columns that share a scale. `unread`: parts that say nothing of it."""

    stem: str
    rows: int
    columns: int
    scale: str
    block: tuple[int, int]
    unread: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        return (f"{self.stem}.weight", self.scale, *self.unread)

    def read(self, stored: StoredTensors, dtype: torch.dtype) -> Tensor:
        high, wide = self.block
        grid = stored.scales(self.scale).reshape(-(-self.rows // high), -(-self.columns // wide))
        out = torch.empty(self.rows, self.columns, dtype=dtype)
        step = max(1, CHUNK_ITEMS // max(1, self.columns))
        for start in range(0, self.rows, step):
            stop = min(start + step, self.rows)
            scales = grid[torch.arange(start, stop) // high].repeat_interleave(wide, dim=1)[:, : self.columns]
            out[start:stop] = stored.rows(f"{self.stem}.weight", start, stop).float().mul_(scales)
        stored.release(f"{self.stem}.weight", self.scale)
        return out


def _parse_group(name: str, group: Any, file: str) -> tuple[Strategy, tuple[int, int] | None]:
    """Strategy and block of one of the `config_groups`."""
    where = f"quantization_config.config_groups.{name[:100]}"
    fields = Fields(group if isinstance(group, dict) else {}, file, where)
    fields.refuse_unless(format=("float-quantized",))
    weights = fields.values.get("weights")
    if not isinstance(weights, dict):
        raise fields.error("weights", "is not an object")
    inner = Fields(weights, file, f"{where}.weights")
    inner.whole("num_bits", (8,))
    inner.refuse_unless(
        type=("float",), symmetric=(True,), dynamic=(False,), group_size=(), actorder=(), strategy=_STRATEGIES
    )
    strategy = next((known for known in _STRATEGIES if str(weights.get("strategy")).lower() == known), None)
    if strategy is None:
        raise inner.error("strategy", "is not there")
    block = inner.block("block_structure")
    if (block is None) == (strategy == "block"):
        raise inner.error("block_structure", f"found {block}, which does not go with strategy {strategy!r}")
    return strategy, block
