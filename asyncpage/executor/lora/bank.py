"""The adapters of an executor: which slot holds which, their tensors, and what each row of a batch runs with.

While the model is built it puts itself around the linear maps that adapters may change. The runner tells it of lessons,
rows and steps. Tensors are read in a thread of its own, beside the forward pass, from the moment that a slot is named.

An adapter keeps its own ranks and its tokens are multiplied by it alone. What lost, for 32 tokens of 8 adapters beside
a product of 576 by 960: at rank 64 one product with all adapters' A, masked (8.8 ms, this 3.4), a batched product
padded to the longest segment (3.3); and where one of 8 segments is a prompt of 505 tokens 33 and 49 ms, this 18.

INVARIANT: what an adapter's rows are given depends on that adapter alone, and rows without one are not touched; one
that cannot be read fails its own rows; at most `most_read` are held, those in slots among them.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from asyncpage.errors import AsyncpageError, ProtocolError
from asyncpage.executor.lora.segments import Segments, plan_segments
from asyncpage.executor.lora.weights import AdapterWeights, Site, read_weights
from asyncpage.messages import AdaptableLinear, Adapter, Int32, LearnAdapter
from asyncpage.models.layers import RowMap

# Maps of all tokens of a step, in its order. Experts see some of them, a head only the last; a map that attention
# takes apart (the upper half of a latent) is not made as one.
_ADAPTABLE = re.compile(r"model\.layers\.\d+\.(self_attn|mlp)(\.shared_experts?)?\.\w+")


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedLinear:
    """A linear map, and what the adapters of this step add to it: each token's B A x."""

    linear: RowMap
    bank: AdapterBank
    site: int

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        y_TO = self.linear(x_TI)
        segments = self.bank.segments
        if segments is not None:
            segments.add(y_TO, self._more(segments.take(x_TI), y_TO, segments))
        return y_TO

    def _more(self, x_NI: torch.Tensor, y_TO: torch.Tensor, segments: Segments) -> torch.Tensor:
        more_NO = y_TO.new_empty(segments.tokens, y_TO.shape[1])
        for slot, begin, end in segments.parts:
            weights = self.bank.weights(slot).get(self.site)
            if weights is None or not weights.is_whole:
                more_NO[begin:end].zero_()
            if weights is not None:
                low_SK = functional.linear(x_NI[begin:end], weights.a)
                for ranks, rows, b in weights.parts:
                    torch.mm(low_SK[:, ranks], b.t(), out=more_NO[begin:end, rows])
        return more_NO


class AdapterBank:
    """`slots`: adapters in one batch; `most_read`: adapters whose tensors are held; both with ranks to `max_rank`."""

    def __init__(
        self, *, slots: int, most_read: int, max_rank: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.segments: Segments | None = None  # of the step under way
        self._slots: list[Adapter | None] = [None] * (slots + 1)
        self._most_read, self._max_rank = most_read, max_rank
        self._dtype, self._device = dtype, torch.device(device)
        self._sites: list[Site] = []
        self._rows: Int32 = np.zeros(64, dtype=np.int32)  # the slot of each row
        self._reads: OrderedDict[str, Future[AdapterWeights]] = OrderedDict()  # by identity, the last named at the end
        self._ready: dict[int, AdapterWeights] = {}  # by slot, those that rows run with
        self._thread: ThreadPoolExecutor | None = None

    # --- while the model is built -------------------------------------------------------------------------------------

    def adapt(self, stems: Sequence[str], rows: Sequence[int], columns: int, linear: RowMap) -> RowMap:
        """The linear map, as it is where adapters may not change it."""
        if not all(map(_ADAPTABLE.fullmatch, stems)):
            return linear
        parts = (AdaptableLinear(stem, count, columns) for stem, count in zip(stems, rows, strict=True))
        self._sites.append(Site(tuple(parts)))
        return AdaptedLinear(linear, self, len(self._sites) - 1)

    @property
    def linears(self) -> tuple[AdaptableLinear, ...]:
        """What adapters may change."""
        return tuple(part for site in self._sites for part in site.parts)

    @property
    def most_bytes(self) -> int:
        """What the tensors take that are held, when all of them are as large as they may be."""
        numbers = sum(self._max_rank * (part.rows + part.columns) for part in self.linears)
        return self._most_read * numbers * self._dtype.itemsize

    # --- what the runner calls ----------------------------------------------------------------------------------------

    def learn(self, lesson: LearnAdapter) -> None:
        """A slot holds another adapter from now on. Errors: `ProtocolError` for a slot that is not there."""
        if not 1 <= lesson.slot < len(self._slots):
            raise ProtocolError(f"adapter slot {lesson.slot} is not one of 1 to {len(self._slots) - 1}")
        self._slots[lesson.slot] = lesson.adapter
        self._ready.pop(lesson.slot, None)
        self._read(lesson.adapter)

    def add(self, row: int, slot: int) -> str | None:
        """A request moves in that runs with this slot (0: with none); why it cannot, else None.

        Waits for the adapter's tensors. One that could not be read is tried again with the next row.
        Errors: `ProtocolError` for a slot that holds nothing.
        """
        if row >= len(self._rows):
            self._rows = np.pad(self._rows, (0, max(row + 1, 2 * len(self._rows)) - len(self._rows)))
        self._rows[row] = slot
        if not slot or slot in self._ready:
            return None
        adapter = self._slots[slot] if 0 < slot < len(self._slots) else None
        if adapter is None:
            raise ProtocolError(f"row {row} runs with adapter slot {slot}, of which nothing was told")
        try:
            self._ready[slot] = self._read(adapter).result()
        except Exception as error:  # whatever it is, it is this adapter's rows'
            del self._reads[adapter.identity]
            self._rows[row] = 0
            told = str(error) if isinstance(error, AsyncpageError) else f"{type(error).__name__}: {error}"
            return f"the adapter cannot be read: {told}"
        return None

    def plan(self, rows: Int32, counts: Int32) -> None:
        """The step under way computes so many tokens of each of these rows."""
        self.segments = plan_segments(self._rows[rows], counts, self._device)

    def weights(self, slot: int) -> AdapterWeights:
        """The tensors of an adapter that a row of this step runs with."""
        return self._ready[slot]

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _read(self, adapter: Adapter) -> Future[AdapterWeights]:
        """Its tensors, or what they will be; makes room for them."""
        if adapter.identity not in self._reads:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "adapters")
            arguments = (adapter, tuple(self._sites), self._max_rank, self._dtype, self._device)
            self._reads[adapter.identity] = self._thread.submit(read_weights, *arguments)
        self._reads.move_to_end(adapter.identity)
        held = {one.identity for one in self._slots if one is not None}
        for identity in [one for one in self._reads if one not in held][: max(0, len(self._reads) - self._most_read)]:
            del self._reads[identity]
        return self._reads[adapter.identity]
