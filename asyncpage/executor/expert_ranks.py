"""The executor's end of experts that are spread over ranks: it is rank 0, and the others are its children.

Rank 0 alone has the rest of the model, the cache and the house's ear; each other rank has its share of the experts and
nothing else. A layer with experts says by link how many rows come for whom (`RunExperts`), sends them out by one
all-to-all and gets them back by another; an idle rank sleeps on its link. Children run `expert_rank`.

INVARIANT: the ranks live and die together. A rank that ends takes rank 0 with it (`_watch`), which the executor's near
end sees and starts them all anew; rank 0's end takes the others by their tethers.

Source: attention and experts on ranks of their own are those of Zhu et al., "MegaScale-Infer: Serving
Mixture-of-Experts at Scale with Disaggregated Expert Parallelism", 2025.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from asyncpage.backends.contract import DeviceInfo
from asyncpage.core.succession import error_of
from asyncpage.errors import ExecutorError, LinkClosed
from asyncpage.executor.expert_exchange import ExpertExchange, end_process, new_meeting_place
from asyncpage.messages import Load, LoadFailed, RankLoaded, RunExperts
from asyncpage.models.experts import ExpertRows, GroupedExperts, MakeExpert
from asyncpage.models.parameter import Parameters
from asyncpage.pipes.launcher import ProcessLauncher, RunningProcess

Owners = Mapping[int, tuple[int, ...]]
"""Of each layer with experts, by its index, the rank that holds each of them."""


def slots_of(owners: Sequence[int]) -> tuple[int, ...]:
    """The experts of a layer in the order of slots: those of rank 0 first, then those of rank 1, and on."""
    return tuple(sorted(range(len(owners)), key=lambda expert: (owners[expert], expert)))


class ExpertRanks:
    """An `ExpertHost`; `connect` comes after the model is built, and before its first step.

    The other ranks start to load at once. Must be made in a thread that lives as long as they shall.
    """

    def __init__(self, load: Load, owners: Owners, ranks: int, device: DeviceInfo) -> None:
        self.ranks, self._owners, self._device = ranks, owners, device
        self._meeting_fd, self._meeting_place = new_meeting_place()
        self._exchange: ExpertExchange | None = None
        self._watcher: threading.Thread | None = None
        self._leaving_fds = os.pipe()
        self._others: list[RunningProcess] = []
        settings = {name: value for name, value in load.settings.items() if name != "kv_arena_fd"}
        settings |= {"meeting_place": self._meeting_place, "expert_owners": tuple(owners.items())}
        launcher = ProcessLauncher(("-m", "asyncpage.executor.expert_rank"))
        try:
            for rank in range(1, ranks):
                self._others.append(launcher.launch(replace(load, settings=settings, rank=rank, ranks=ranks)))
        except BaseException:
            self.close()
            raise

    def place(self, layer: int, count: int, make: MakeExpert, parameters: Parameters) -> ExpertRows:
        """Make rank 0's share of a layer. See `ExpertHost`."""
        owners = self._owners[layer]
        order = slots_of(owners)
        slots = torch.empty(count, dtype=torch.int64)
        slots[list(order)] = torch.arange(count)
        own = GroupedExperts([make(expert, parameters) for expert in order if owners[expert] == 0])
        ends = np.cumsum([owners.count(rank) for rank in range(self.ranks)]).tolist()
        return _SpreadExperts(self, layer, own, slots.to(parameters.device), ends)

    def connect(self) -> None:
        """Wait until all ranks have loaded, and join them.

        Errors: what a rank says that it cannot load; `ExecutorError` when one has died.
        """
        for rank, other in enumerate(self._others, start=1):
            try:
                answer = other.link.wait(None)
            except LinkClosed:
                raise ExecutorError(f"expert rank {rank} did not load: {other.wait()}") from None
            match answer:
                case RankLoaded():
                    continue
                case LoadFailed():
                    raise error_of(answer)
                case _:
                    raise ExecutorError(f"expert rank {rank} sent {type(answer).__name__} while it was loading")
        self._watcher = threading.Thread(target=self._watch, name="expert-ranks", daemon=True)
        self._watcher.start()
        self._exchange = ExpertExchange(self._meeting_place, 0, self.ranks, self._device)

    def run(self, layer: int, own: GroupedExperts, x_PE: Tensor, counts: Sequence[Sequence[int]]) -> Tensor:
        """Rows sorted by rank and expert through their experts. `counts`: of each rank, rows for its experts."""
        sent = [sum(of_rank) for of_rank in counts]
        if self._exchange is None or sent[0] == len(x_PE):
            return own(x_PE, counts[0])
        back = [sent[0]] + [0] * (self.ranks - 1)
        try:
            for other, of_rank in zip(self._others, counts[1:], strict=True):
                other.link.send(RunExperts(layer, np.array(of_rank, dtype=np.int32)))
            mine_PE = self._exchange.swap(x_PE, sent, back)
            return self._exchange.swap(own(mine_PE, counts[0]), back, sent)
        except Exception as error:  # the others are somewhere between two calls, and nobody knows where
            end_process(f"rows could not be exchanged with the expert ranks: {type(error).__name__}: {error}")

    def close(self) -> None:
        """End the other ranks, which keep nothing, and reap them."""
        os.write(self._leaving_fds[1], b"x")
        if self._watcher is not None:
            self._watcher.join()
        if self._exchange is not None:
            self._exchange.close()
        for other in self._others:
            other.kill()
            other.wait()
        for fd in (*self._leaving_fds, self._meeting_fd):
            os.close(fd)

    def _watch(self) -> None:
        """End this process when one of the others ends, even while this one waits for it inside of a library."""
        news = select.poll()
        ranks = {other.sentinel_fd: rank for rank, other in enumerate(self._others, start=1)}
        for fd in (self._leaving_fds[0], *ranks):
            news.register(fd, select.POLLIN)
        ended = [fd for fd, _ in news.poll()]
        if self._leaving_fds[0] not in ended:
            end_process(f"expert rank {ranks[ended[0]]} has ended, and the others with it")


@dataclass(frozen=True, slots=True, eq=False)
class _SpreadExperts:
    """See `ExpertRows`. `own`: rank 0's share; `ends`: of each rank, the slot behind its last."""

    ranks: ExpertRanks
    layer: int
    own: GroupedExperts
    slots: Tensor
    ends: Sequence[int]

    def __call__(self, x_PE: Tensor, counts: Sequence[int]) -> Tensor:
        starts = (0, *self.ends[:-1])
        shares = [counts[start:end] for start, end in zip(starts, self.ends, strict=True)]
        return self.ranks.run(self.layer, self.own, x_PE, shares)
