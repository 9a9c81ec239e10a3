"""Counts the tokens that each expert serves, into the file of measured load.

Stands between a layer and whoever runs its experts; `experts` puts it there when the executor was told of a file.

INVARIANT: the file's counts only grow while it is kept, across executors that serve the same model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from asyncpage.formats.expert_load import ExpertTokens, write_expert_load
from asyncpage.models.experts import ExpertHost, ExpertRows, MakeExpert
from asyncpage.models.parameter import Parameters

STEPS_BETWEEN_WRITES = 1000
"""A write takes milliseconds; a killed executor loses some seconds of counts."""


class ExpertMeter:
    """An `ExpertHost` in front of another one. `before`: what the file says already."""

    def __init__(self, host: ExpertHost, path: Path, before: ExpertTokens) -> None:
        self._host, self._path = host, path
        self._tokens: dict[int, NDArray[np.int64]] = {layer: np.array(counts) for layer, counts in before.items()}
        self._layers = self._calls = 0

    def place(self, layer: int, count: int, make: MakeExpert, parameters: Parameters) -> ExpertRows:
        rows = self._host.place(layer, count, make, parameters)
        self._tokens.setdefault(layer, np.zeros(count, dtype=np.int64))
        self._layers += 1
        experts = np.arange(count) if rows.slots is None else np.argsort(rows.slots.cpu().numpy())
        return _MeteredRows(rows, self, layer, experts)

    def count(self, layer: int, experts: NDArray[np.int64], counts: Sequence[int]) -> None:
        """`counts[i]` more rows for expert `experts[i]`."""
        self._tokens[layer][experts] += np.asarray(counts)
        self._calls += 1
        if self._calls % (STEPS_BETWEEN_WRITES * self._layers) == 0:
            self.write()

    def write(self) -> None:
        """Bring the file up to date; one that cannot be written costs no answer."""
        try:
            write_expert_load(self._path, {layer: counts.tolist() for layer, counts in sorted(self._tokens.items())})
        except OSError as error:
            print(f"asyncpage executor: --expert-load {self._path} was not written: {error}", file=sys.stderr)


@dataclass(frozen=True, slots=True, eq=False)
class _MeteredRows:
    """See `ExpertRows`. `experts`: the one in each slot."""

    rows: ExpertRows
    meter: ExpertMeter
    layer: int
    experts: NDArray[np.int64]

    @property
    def slots(self) -> Tensor | None:
        return self.rows.slots

    def __call__(self, x_PE: Tensor, counts: Sequence[int]) -> Tensor:
        self.meter.count(self.layer, self.experts, counts)
        return self.rows(x_PE, counts)
