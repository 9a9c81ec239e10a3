"""A rank that holds a part of a model's experts: loads them, then runs the rows that come for them.

Over the link the executor (`expert_ranks`) sends `Load`, then `RunExperts`, and `Shutdown`; this sends `RankLoaded` or
`LoadFailed`. Rows come and go by the exchange.

INVARIANT: whatever goes wrong after it has loaded ends this process, and its end the executor's.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from asyncpage.backends.device import present_device
from asyncpage.errors import AsyncpageError, LinkClosed, ProtocolError
from asyncpage.executor.expert_exchange import ExpertExchange
from asyncpage.executor.expert_ranks import Owners, slots_of
from asyncpage.executor.grids import native_folder, open_grids
from asyncpage.executor.process import one_line
from asyncpage.kernels.loaded import open_library
from asyncpage.messages import Load, LoadFailed, RankLoaded, RunExperts, Shutdown
from asyncpage.models.experts import ExpertRows, GroupedExperts, MakeExpert
from asyncpage.models.parameter import Parameters
from asyncpage.models.registry import build_model
from asyncpage.pipes.link import Link
from asyncpage.weights.checkpoint import open_checkpoint


def work(link: Link) -> None:
    """Work until the other end says `Shutdown` or is gone. Errors: whatever goes wrong."""
    try:
        load = link.wait(None)
        if not isinstance(load, Load):
            raise ProtocolError(f"a rank's first message must be Load, found {type(load).__name__}")
        try:
            share = _Share(load)
        except AsyncpageError as error:
            link.send(LoadFailed(type(error).__name__, one_line(error)))
            return
        link.send(RankLoaded(load.rank, os.getpid()))
        share.join()
        while True:
            match link.wait(None):
                case RunExperts() as rows:
                    share.run(rows)
                case Shutdown():
                    return
                case None:
                    continue
                case other:
                    raise ProtocolError(f"a rank that has loaded runs experts, found {type(other).__name__}")
    except LinkClosed:
        return


class _Share:
    """This rank's experts, in the order of their slots. It is the `ExpertHost` of a model that has no other values."""

    def __init__(self, load: Load) -> None:
        settings, self._rank, self._ranks = load.settings, load.rank, load.ranks
        self._meeting_place = settings["meeting_place"]
        self._owners: Owners = dict(settings["expert_owners"])
        self._device = present_device(settings["device"])
        if self._device.kind == "cpu":
            torch.set_num_threads(settings["cpu_threads"])
            open_library(native_folder(settings), settings["cpu_threads"])
        else:
            self._device = replace(self._device, index=self._rank)
        self._dtype = getattr(torch, settings["dtype"])
        self._layers: dict[int, GroupedExperts] = {}
        self._exchange: ExpertExchange | None = None
        checkpoint = open_checkpoint(Path(settings["model_path"]))
        try:
            self._parameters = Parameters(
                lambda name: checkpoint.tensor(name, self._dtype),
                self._dtype,
                self._device.torch_device,
                held=getattr(torch, settings["held_dtype"]),
                grids=open_grids(settings, checkpoint, self._device, settings["dtype"]),
            )
            self._width = build_model(checkpoint.config, None, self._dtype, "cpu", experts=self).hidden_size
        finally:
            checkpoint.close()

    def place(self, layer: int, count: int, make: MakeExpert, parameters: Parameters) -> ExpertRows:
        """Make what is this rank's of a layer; the model's own `parameters` have no values."""
        owners = self._owners[layer]
        own = [make(expert, self._parameters) for expert in slots_of(owners) if owners[expert] == self._rank]
        self._layers[layer] = GroupedExperts(own)
        return self._layers[layer]

    def join(self) -> None:
        """Meet the other ranks."""
        self._exchange = ExpertExchange(self._meeting_place, self._rank, self._ranks, self._device)

    def run(self, rows: RunExperts) -> None:
        """Take the rows that rank 0 sends, run them, and send them back."""
        assert self._exchange is not None
        counts = rows.counts.tolist()
        here, nowhere = [sum(counts)] + [0] * (self._ranks - 1), [0] * self._ranks
        nothing_PE = torch.empty(0, self._width, dtype=self._dtype, device=self._device.torch_device)
        with torch.inference_mode():
            x_PE = self._exchange.swap(nothing_PE, nowhere, here)
            self._exchange.swap(self._layers[rows.layer](x_PE, counts), here, nowhere)
