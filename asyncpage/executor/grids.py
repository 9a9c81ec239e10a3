"""Decides whether quantised weights stay on the grid of their file, and what multiplies by them.

The loader of the runner asks it before weights are read, the list of a step's operators without building anything.

INVARIANT: what stays on its grid is what native code multiplies, and only where that was asked for; where there is no
code for it every weight is dequantised, and it is said why.

It is no default: activations in eight bits make of the last bits of whatever is before a product the first ones of a
rounding error. Attention sums in another order when a step has other rows, so which tokens a request gets depends on
its neighbours: between two ways to cut a prompt of 300 tokens the greatest
differences of the demo's logits were 0.00008 in float32 and 1.4 on its grid, and 10 first choices were others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asyncpage.backends.contract import DeviceInfo
from asyncpage.kernels import native
from asyncpage.kernels.quantised import GRIDS, QuantisedProducts
from asyncpage.models.quantised_linear import Grids
from asyncpage.weights.checkpoint import Checkpoint

STORED = "stored"
"""Of the setting `weights_dtype`: on the grid of the file."""


@dataclass(frozen=True, slots=True)
class GridChoice:
    """`grids`: for the model's parameters, None where all weights are dequantised.

    `variant`: the native code's name, "" for none. `lack`: why there is none where it would have been used, else "".
    """

    grids: Grids | None
    variant: str = ""
    lack: str = ""

    @property
    def without_values(self) -> Grids | None:
        """For an outline of the model."""
        return None if self.grids is None else replace(self.grids, products=None)


def outline_grids(settings: Mapping[str, Any], checkpoint: Checkpoint, device: DeviceInfo, dtype: str) -> GridChoice:
    """What `open_grids` would choose, nothing built or loaded: `grids` has no products."""
    if not _is_wanted(settings, checkpoint, device, dtype):
        return GridChoice(None)
    found = native.look(_folder(settings))
    if found.variant is None:
        return GridChoice(None, lack=found.reason)
    return GridChoice(Grids(checkpoint.grid, checkpoint.blocks, found.variant.lanes), found.variant.name)


def open_grids(
    settings: Mapping[str, Any], checkpoint: Checkpoint, device: DeviceInfo, dtype: str, threads: int
) -> GridChoice:
    """For a model that is about to be loaded; native code is built first where it is not yet, which takes seconds."""
    if not _is_wanted(settings, checkpoint, device, dtype):
        return GridChoice(None)
    found = native.build(_folder(settings))
    if found.path is None or found.variant is None:
        return GridChoice(None, lack=found.reason)
    try:
        products = QuantisedProducts(found.path, threads)
    except OSError as error:
        return GridChoice(None, lack=f"{found.path} does not load: {error}")
    return GridChoice(Grids(checkpoint.grid, checkpoint.blocks, found.variant.lanes, products), found.variant.name)


def held_kinds(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The grids of a checkpoint's matrices that there are products for, the one of most weights first."""
    weights: dict[str, int] = {}
    for name in checkpoint.names:
        grid = checkpoint.grid(name)
        if grid is not None and grid.kind in GRIDS:
            weights[grid.kind] = weights.get(grid.kind, 0) + grid.rows * grid.columns
    return tuple(sorted(weights, key=weights.__getitem__, reverse=True))


def _is_wanted(settings: Mapping[str, Any], checkpoint: Checkpoint, device: DeviceInfo, dtype: str) -> bool:
    is_asked = settings.get("weights_dtype", "auto") == STORED
    return is_asked and device.kind == "cpu" and dtype == "float32" and bool(held_kinds(checkpoint))


def _folder(settings: Mapping[str, Any]) -> Path | None:
    folder = settings.get("native_folder")
    return None if folder is None else Path(folder)
