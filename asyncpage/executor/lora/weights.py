"""The tensors of one adapter, read from its folder into what the adapted linear maps multiply by.

The bank reads them in a thread of its own.

INVARIANT: what is returned was checked again from end to end, and is the very adapter that the engine has checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from asyncpage.adapters.adapter_file import AdapterFile, LowRank
from asyncpage.errors import ModelError
from asyncpage.messages import AdaptableLinear, Adapter

_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Site:
    """An adapted linear map of the model: one product of the parts that it joins, one below the other."""

    parts: tuple[AdaptableLinear, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SiteWeights:
    """What an adapter has for one site. `a` [K, in]: the A of every part, one below the other.

    `parts`: for each part that it changes the ranks in K, the outputs in the site's, and B [outputs, ranks], scaled.
    `is_whole`: no output of the site is left out.
    """

    a: torch.Tensor
    parts: tuple[tuple[slice, slice, torch.Tensor], ...]
    is_whole: bool


AdapterWeights = Mapping[int, SiteWeights]
"""By the number of the site; those that the adapter does not change are not there."""


def read_weights(
    adapter: Adapter, sites: Sequence[Site], max_rank: int, dtype: torch.dtype, device: torch.device
) -> AdapterWeights:
    """Errors: `ModelError`, `FormatError`: the files are gone, damaged or no longer those that were loaded."""
    linears = {part.name: part for site in sites for part in site.parts}
    file = AdapterFile(Path(adapter.folder), linears, max_rank)
    try:
        scales = {change.b: change.scale for change in file.changes}
        tensors: dict[str, torch.Tensor] = {}
        for info, values in file.read():
            stored = torch.frombuffer(bytearray(values), dtype=_TYPES[info.dtype]).reshape(info.shape)
            scaled = (stored.float() * scales[info.name]) if info.name in scales else stored
            tensors[info.name] = scaled.to(device, dtype)
            if not bool(torch.isfinite(tensors[info.name]).all()):
                raise ModelError(f"{adapter.folder}: tensor {info.name!r}, scaled, is too large for {dtype}")
        if file.identity != adapter.identity:
            raise ModelError(f"{adapter.folder}: the adapter's files have changed since it was loaded; load it again")
        changes = {change.linear.name: change for change in file.changes}
    finally:
        file.close()
    return {number: found for number, site in enumerate(sites) if (found := _site(site, changes, tensors))}


def _site(site: Site, changes: Mapping[str, LowRank], tensors: Mapping[str, torch.Tensor]) -> SiteWeights | None:
    stacked: list[torch.Tensor] = []
    parts: list[tuple[slice, slice, torch.Tensor]] = []
    rank = row = changed = 0
    for linear in site.parts:
        change = changes.get(linear.name)
        if change is not None:
            stacked.append(tensors[change.a])
            ranks, rows = slice(rank, rank + change.rank), slice(row, row + linear.rows)
            parts.append((ranks, rows, tensors[change.b]))
            rank += change.rank
            changed += linear.rows
        row += linear.rows
    if not parts:
        return None
    return SiteWeights(torch.cat(stacked), tuple(parts), changed == row)
