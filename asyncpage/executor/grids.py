"""Decides whether quantised weights stay on the grid of their file, and what multiplies by them.

The loader of the runner asks it before weights are read, the list of a step's operators without building anything.

INVARIANT: what stays on its grid, or is put on one as it is loaded, is what native code multiplies; where there is
none, and where `exact` or a type of weights is asked for, every weight is dequantised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from asyncpage.backends.contract import DeviceInfo
from asyncpage.errors import UsageError
from asyncpage.kernels import native
from asyncpage.kernels.loaded import current_library
from asyncpage.kernels.quantised import GRIDS, QuantisedProducts
from asyncpage.models.quantised_linear import Grids, MadeGrid
from asyncpage.weights.checkpoint import Checkpoint

_MADE: Mapping[str, MadeGrid | None] = {
    "none": None, "int8": MadeGrid("Q8_0", "Q8_0"), "int4": MadeGrid("Q4_1", "Q8_0"),
}  # fmt: skip


def outline_grids(settings: Mapping[str, Any], checkpoint: Checkpoint, device: DeviceInfo, dtype: str) -> Grids | None:
    """What `open_grids` would give, nothing built or loaded: without products."""
    if not _is_wanted(settings, checkpoint, device, dtype):
        return None
    variant = native.look(native_folder(settings)).variant
    return None if variant is None else Grids(checkpoint.grid, checkpoint.blocks, variant.lanes, made=_made(settings))


def open_grids(settings: Mapping[str, Any], checkpoint: Checkpoint, device: DeviceInfo, dtype: str) -> Grids | None:
    """For the parameters of a model that is about to be loaded; None where all weights are dequantised.

    Errors: `UsageError` where weights are to be quantised and nothing here could multiply by them.
    """
    library = current_library() if device.kind == "cpu" else "it is for CPUs"
    if isinstance(library, str) and _made(settings) is not None:
        raise UsageError(f"--quantization needs native code, and there is none: {library}; leave it out")
    if isinstance(library, str) or not _is_wanted(settings, checkpoint, device, dtype):
        return None
    products = QuantisedProducts(library.code, library.threads)
    return Grids(checkpoint.grid, checkpoint.blocks, library.variant.lanes, products, _made(settings))


def without_values(grids: Grids | None) -> Grids | None:
    """For an outline of the model."""
    return None if grids is None else replace(grids, products=None)


def held_kinds(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The grids of a checkpoint's matrices that there are products for, the one of most weights first, and those that
    its other matrices are put on."""
    weights: dict[str, int] = {}
    for name in checkpoint.names:
        grid = checkpoint.grid(name)
        if grid is not None and grid.kind in GRIDS:
            weights[grid.kind] = weights.get(grid.kind, 0) + grid.rows * grid.columns
    made = _made(settings)
    others = () if made is None else (made.kind, made.wide_kind)
    return tuple(dict.fromkeys([*sorted(weights, key=weights.__getitem__, reverse=True), *others]))


def _is_wanted(settings: Mapping[str, Any], checkpoint: Checkpoint, device: DeviceInfo, dtype: str) -> bool:
    is_plain = device.kind == "cpu" and dtype == "float32" and settings.get("weights_dtype", "auto") == "auto"
    return is_plain and not settings.get("exact", False) and bool(held_kinds(checkpoint, settings))


def _made(settings: Mapping[str, Any]) -> MadeGrid | None:
    """The grids that matrices without one are put on."""
    return _MADE[settings.get("quantization", "none")]


def native_folder(settings: Mapping[str, Any]) -> Path | None:
    """Where native code is kept; None for nowhere, and so for none."""
    folder = settings.get("native_folder")
    return None if folder is None else Path(folder)
