"""GPTQ weights: 4 or 8 bits, a scale and a zero point for each group of inputs, packed along the inputs.

`X.qweight` int32 [in * bits / 32, out], `X.qzeros` int32 [groups, out * bits / 32], `X.scales` [groups, out] and
`X.g_idx` int32 [in], the group of each input. `QuantisedFolder` chooses it for `quant_method: gptq`.

INVARIANT: settings that contradict the tensors are refused: readers differ in which of the two they believe.

Source: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022; the
layout of `checkpoint_format` gptq and gptq_v2, which differ in the zero points: the first stores words from which one
was taken in every place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asyncpage.weights.packed_integers import WORD_BITS, scale_groups, unpack
from asyncpage.weights.quantisation import CHUNK_ITEMS, Fields
from asyncpage.weights.stored_tensors import FLOATS, StoredTensors


@dataclass(frozen=True, slots=True)
class Gptq:
    """`is_offset`: zero points are stored less one. `group_size` -1: all inputs are one group."""

    bits: int
    group_size: int
    is_symmetric: bool
    is_reordered: bool
    is_offset: bool

    @classmethod
    def parse(cls, config: Mapping[str, Any], file: str) -> Gptq:
        """Errors: `FormatError` naming a field that is wrong or not obeyed."""
        fields = Fields(config, file)
        formats = ("gptq", "gptq_v2")
        # Each is a name for the format, by its age.
        fields.refuse_unless(
            checkpoint_format=formats, format=formats, is_marlin_format=(False,), pack_dtype=("int32",), adapter=()
        )
        named = {str(config[name]).lower() for name in ("checkpoint_format", "format") if config.get(name) is not None}
        if len(named) > 1:
            raise fields.error("checkpoint_format", f"{config['checkpoint_format']!r} and format {config['format']!r}")
        dynamic = config.get("dynamic") or {}
        for pattern in dynamic if isinstance(dynamic, dict) else (str(dynamic),):
            if not pattern.startswith("-:"):  # what is left alone shows in the tensors, what is done otherwise does not
                raise fields.error("dynamic", f"{pattern[:100]!r} sets other bits or groups, which is not supported")
        return cls(
            bits=fields.whole("bits", (4, 8)),
            group_size=fields.group_size(),
            is_symmetric=fields.flag("sym", True),
            is_reordered=fields.flag("desc_act", False),
            is_offset="gptq_v2" not in named,
        )

    @property
    def label(self) -> str:
        return f"GPTQ in {self.bits} bits"

    def find(self, stored: StoredTensors) -> dict[str, GptqWeight]:
        ends = ".qweight"
        stems = [name.removesuffix(ends) for name in stored.infos if name.endswith(ends)]
        return {f"{stem}.weight": self._weight(stored, stem) for stem in stems}

    def _weight(self, stored: StoredTensors, stem: str) -> GptqWeight:
        per_word = WORD_BITS // self.bits
        words, columns = stored.info(f"{stem}.qweight", ("I32",), dimensions=2).shape
        inputs = words * per_word
        size = inputs if self.group_size == -1 else self.group_size
        groups = -(-inputs // max(1, size))
        if columns % per_word:
            raise stored.error(f"{stem}.qweight", f"has {columns} columns, which do not fill words of {per_word}")
        stored.require(f"{stem}.scales", FLOATS, groups, columns)
        stored.require(f"{stem}.qzeros", ("I32",), groups, columns // per_word)
        has_index = f"{stem}.g_idx" in stored.infos
        if has_index or self.is_reordered:
            stored.require(f"{stem}.g_idx", ("I32",), inputs)
        return GptqWeight(self, stem, columns, inputs, size, has_index)


@dataclass(frozen=True, slots=True)
class GptqWeight:
    """See `QuantisedWeight`. `group_size`: items of one group, never -1."""

    method: Gptq
    stem: str
    outputs: int
    inputs: int
    group_size: int
    has_index: bool

    @property
    def parts(self) -> tuple[str, ...]:
        index = (f"{self.stem}.g_idx",) if self.has_index else ()
        return (f"{self.stem}.qweight", f"{self.stem}.qzeros", f"{self.stem}.scales", *index)

    def read(self, stored: StoredTensors, dtype: torch.dtype) -> Tensor:
        per_word = WORD_BITS // self.method.bits
        groups_K, zeros_GN = self._groups(stored), self._zeros(stored)
        scales_GN = stored.scales(f"{self.stem}.scales")
        out_NK = torch.empty(self.outputs, self.inputs, dtype=dtype)
        step = max(1, CHUNK_ITEMS // max(1, self.outputs * per_word))
        for word in range(0, self.inputs // per_word, step):
            words = stored.rows(f"{self.stem}.qweight", word, min(word + step, self.inputs // per_word))
            # A word holds inputs that follow one another, of one output.
            items_KN = unpack(words, self.method.bits, axis=0)
            chosen = slice(word * per_word, word * per_word + len(items_KN))
            out_NK[:, chosen] = scale_groups(items_KN, groups_K[chosen], zeros_GN, scales_GN).t()
        stored.release(*self.parts)
        return out_NK

    def _groups(self, stored: StoredTensors) -> Tensor:
        """The group of each input: int64 [in]."""
        in_order = torch.arange(self.inputs) // self.group_size
        name = f"{self.stem}.g_idx"
        if not self.has_index:
            return in_order
        groups = stored.whole(name).long()
        if len(groups) and (int(groups.min()) < 0 or int(groups.max()) > int(in_order[-1])):
            reason = f"names groups {int(groups.min())} to {int(groups.max())}, there are 0 to {int(in_order[-1])}"
            raise stored.error(name, reason)
        if not self.method.is_reordered and not torch.equal(groups, in_order):
            raise stored.error(name, "gives inputs to groups out of order, and desc_act in the config is false")
        return groups

    def _zeros(self, stored: StoredTensors) -> Tensor:
        """The zero points: int32 [groups, out]."""
        bits, name = self.method.bits, f"{self.stem}.qzeros"
        words = stored.whole(name)
        if self.method.is_offset:
            # Taken off from the words, borrows and all, it is put back to the words.
            words += sum(1 << place for place in range(0, WORD_BITS, bits))
        zeros = unpack(words, bits)
        middle = 1 << (bits - 1)
        if self.method.is_symmetric and not bool((zeros == middle).all()):
            other = int(zeros[zeros != middle][0])
            reason = (
                f"has zero point {other} where sym in the config means {middle}; is checkpoint_format the right one?"
            )
            raise stored.error(name, reason)
        return zeros
