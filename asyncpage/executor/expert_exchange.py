"""One rank's end of the exchange of rows between ranks that share a model's experts: torch's all-to-all.

`expert_ranks` has rank 0's end, `expert_worker` that of every other. Gloo carries the rows on a CPU and NCCL between
GPUs; both open sockets of their own, on the loopback interface. Ranks find one another through memory without a name.

INVARIANT: every rank's calls come in the same order, and what one says that it sends, the other says that it receives.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as distributed
from torch import Tensor

from asyncpage.backends.contract import DeviceInfo
from asyncpage.errors import UsageError

# A rank that is dead is noticed by its process, one that hangs by the step's time-out: no call needs one of its own.
_PATIENCE = timedelta(days=365)


class ExpertExchange:
    """Joins the others. Blocks until all ranks have come."""

    def __init__(self, meeting_place: str, rank: int, ranks: int, device: DeviceInfo) -> None:
        loopback = _loopback()
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
        if device.kind != "cpu":
            torch.cuda.set_device(device.index)
        self._device = torch.device(device.torch_device)
        distributed.init_process_group(
            "gloo" if device.kind == "cpu" else "nccl",
            store=distributed.FileStore(meeting_place, ranks),  # type: ignore[attr-defined]  # its stubs forget it
            rank=rank,
            world_size=ranks,
            timeout=_PATIENCE,
        )
        # Connections that are made at the first use are made now, while nobody waits for an answer.
        self.swap(torch.zeros(ranks, 1, device=self._device), [1] * ranks, [1] * ranks)

    def swap(self, x_PE: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """The first `sent[0]` rows go to rank 0, the next to rank 1, and on; what comes is in the order of ranks."""
        out_QE = x_PE.new_empty(sum(received), x_PE.shape[1])
        # As bytes, because not every library carries every type.
        distributed.all_to_all_single(
            out_QE.view(torch.uint8), x_PE.contiguous().view(torch.uint8), list(received), list(sent)
        )
        return out_QE

    def close(self) -> None:
        """Leave, whether or not the others are still there."""
        distributed.destroy_process_group()


def new_meeting_place() -> tuple[int, str]:
    """A descriptor to keep open until all ranks have come, and the path that the others reach it by.

    Errors: `UsageError` where the system has no memory without a name.
    """
    if not hasattr(os, "memfd_create"):
        raise UsageError("--expert-parallel-size: needs Linux; leave it out")
    fd = os.memfd_create("asyncpage-ranks", os.MFD_CLOEXEC)
    return fd, f"/proc/{os.getpid()}/fd/{fd}"


def end_process(reason: str) -> NoReturn:
    """The exchange is broken and cannot be mended from here: all ranks end, and the executor is started anew."""
    print(f"asyncpage executor {os.getpid()}: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


def _loopback() -> str:
    """The name of the interface that only this machine reaches."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), "lo")
