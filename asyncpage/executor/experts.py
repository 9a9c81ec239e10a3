"""Where the experts of a model run and what is measured of them, as the executor's settings say.

`runner` asks for it before it builds a model, connects it afterwards, and closes it with the runner.

INVARIANT: what is asked for and cannot be had is refused before any weight is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from asyncpage.backends.contract import DeviceInfo
from asyncpage.core.expert_placement import by_load, round_robin
from asyncpage.errors import UsageError
from asyncpage.executor.expert_meter import ExpertMeter
from asyncpage.executor.expert_ranks import ExpertRanks
from asyncpage.formats.expert_load import ExpertTokens, read_expert_load
from asyncpage.messages import Load
from asyncpage.models.experts import AllHere, ExpertHost


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """`host`: what the model is built with."""

    host: ExpertHost
    ranks: ExpertRanks | None = None
    meter: ExpertMeter | None = None

    def connect(self) -> None:
        """The model is built: wait for the other ranks. Errors: as `ExpertRanks.connect`."""
        if self.ranks is not None:
            self.ranks.connect()

    def close(self) -> None:
        """Write what was measured, and end the other ranks."""
        if self.meter is not None:
            self.meter.write()
        if self.ranks is not None:
            self.ranks.close()


def open_experts(load: Load, layers: Mapping[int, int], device: DeviceInfo) -> Experts:
    """For a model of so many experts in each of these `layers`. `load` names dtype, device and threads as they are.

    Errors: `UsageError` for what this model or this machine does not have; `FormatError` for the file of load.
    """
    settings = load.settings
    size, path = settings.get("expert_parallel_size", 1), settings.get("expert_load")
    if not layers and (size > 1 or path is not None):
        flag = "--expert-load" if size == 1 else f"--expert-parallel-size {size}"
        raise UsageError(f"{flag} is for models with experts, and this one has none; leave it out")
    if size > min(layers.values(), default=size):
        raise UsageError(
            f"--expert-parallel-size {size} is more than the {min(layers.values())} experts of a layer; lower it"
        )
    if size > 1 and device.kind != "cpu" and size > torch.cuda.device_count():
        raise UsageError(
            f"--expert-parallel-size {size} needs a device for each rank, found {torch.cuda.device_count()}; lower it"
        )
    measured = None if path is None else _measured(Path(path), layers)
    ranks = None
    if size > 1:
        owners = {
            layer: by_load(measured[layer], size) if measured else round_robin(count, size)
            for layer, count in layers.items()
        }
        ranks = ExpertRanks(load, owners, size, device)
    host: ExpertHost = ranks or AllHere()
    if path is None:
        return Experts(host, ranks)
    meter = ExpertMeter(host, Path(path), measured or {})
    return Experts(meter, ranks, meter)


def _measured(path: Path, layers: Mapping[int, int]) -> ExpertTokens:
    """What the file says; {} where it is not there yet."""
    if not path.exists():
        if not path.parent.is_dir():
            raise UsageError(f"--expert-load {path}: there is no folder {path.parent}; make it")
        return {}
    found = read_expert_load(path)
    if {layer: len(tokens) for layer, tokens in found.items()} != dict(layers):
        raise UsageError(f"--expert-load {path} was measured on a model with other experts; name another file")
    return found
