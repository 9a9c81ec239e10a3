"""AWQ weights: 4 bits, a scale and a zero point for each group of inputs, packed along the outputs.

`X.qweight` int32 [in, out / 8], `X.qzeros` int32 [groups, out / 8] and `X.scales` [groups, out]. `QuantisedFolder`
chooses it for `quant_method: awq`.

INVARIANT: only the packing for matrix products (`version: gemm`) is read; others have the same names and other orders.

Source: Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", 2023; the layout
of `version: gemm`, where a word holds outputs 0, 2, 4, 6, 1, 3, 5, 7 of its eight, from the lowest bits on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asyncpage.weights.packed_integers import scale_groups, unpack
from asyncpage.weights.quantisation import CHUNK_ITEMS, Fields
from asyncpage.weights.stored_tensors import FLOATS, StoredTensors

BITS = 4
PER_WORD = 8
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in its word each of eight outputs is."""


@dataclass(frozen=True, slots=True)
class Awq:
    """`group_size` -1: all inputs are one group."""

    group_size: int

    @classmethod
    def parse(cls, config: Mapping[str, Any], file: str) -> Awq:
        """Errors: `FormatError` naming a field that is wrong or not obeyed."""
        fields = Fields(config, file)
        fields.whole("w_bit" if "w_bit" in config else "bits", (BITS,))
        fields.refuse_unless(
            version=("gemm",), format=("gemm",), zero_point=(True,), desc_act=(False,), pack_dtype=("int32",),
            dynamic=({},), adapter=(),
        )  # fmt: skip
        if config.get("backend") == "llm-awq":
            raise fields.error("backend", "'llm-awq' packs in another order, which is not supported")
        return cls(fields.group_size("q_group_size" if "q_group_size" in config else "group_size"))

    @property
    def label(self) -> str:
        return f"AWQ in {BITS} bits"

    def find(self, stored: StoredTensors) -> dict[str, AwqWeight]:
        ends = ".qweight"
        stems = [name.removesuffix(ends) for name in stored.infos if name.endswith(ends)]
        return {f"{stem}.weight": self._weight(stored, stem) for stem in stems}

    def _weight(self, stored: StoredTensors, stem: str) -> AwqWeight:
        inputs, words = stored.info(f"{stem}.qweight", ("I32",), dimensions=2).shape
        size = inputs if self.group_size == -1 else self.group_size
        groups = -(-inputs // max(1, size))
        stored.require(f"{stem}.scales", FLOATS, groups, words * PER_WORD)
        stored.require(f"{stem}.qzeros", ("I32",), groups, words)
        return AwqWeight(stem, words * PER_WORD, inputs, size)


@dataclass(frozen=True, slots=True)
class AwqWeight:
    """See `QuantisedWeight`. `group_size`: items of one group, never -1."""

    stem: str
    outputs: int
    inputs: int
    group_size: int

    @property
    def parts(self) -> tuple[str, ...]:
        return (f"{self.stem}.qweight", f"{self.stem}.qzeros", f"{self.stem}.scales")

    def read(self, stored: StoredTensors, dtype: torch.dtype) -> Tensor:
        zeros_GN = unpack(stored.whole(f"{self.stem}.qzeros"), BITS, order=PLACES)
        scales_GN = stored.scales(f"{self.stem}.scales")
        out_NK = torch.empty(self.outputs, self.inputs, dtype=dtype)
        step = max(1, CHUNK_ITEMS // max(1, self.outputs))
        for start in range(0, self.inputs, step):
            stop = min(start + step, self.inputs)
            items_KN = unpack(stored.rows(f"{self.stem}.qweight", start, stop), BITS, order=PLACES)
            groups_K = torch.arange(start, stop) // self.group_size
            out_NK[:, start:stop] = scale_groups(items_KN, groups_K, zeros_GN, scales_GN).t()
        stored.release(*self.parts)
        return out_NK
