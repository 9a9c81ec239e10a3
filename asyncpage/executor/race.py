"""Draws one token a row by an exponential race: the smallest E_i / p_i wins, with probability p_i exactly.

The sampler asks; noise comes from `noise`. A whole vocabulary is raced in two heats: a float32 pass over everything
with u <= E in place of E, which no winner can fail, and a float64 pass over the few that could still win.

INVARIANT: the winner is a function of the row's logits, temperature and key alone; a dead heat goes to the lowest id.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from asyncpage.executor import extremes, noise

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

_MARGIN = 1 - 1e-4  # covers the float32 rounding of the first heat many times over
_HEAT_ENTRIES = 65_536  # entries of a heat on a CPU: more rows at once leave its caches
_DEVICE_ENTRIES = 1 << 26
_ONE_HEAT = 256  # so few that a first heat saves nothing


class Race:
    """The track: one table and three buffers, made once for a vocabulary."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._device = device
        self._table = noise.vocabulary_table(vocab_size, device)
        entries = _HEAT_ENTRIES if device.type == "cpu" else _DEVICE_ENTRIES
        self._rows = max(1, entries // vocab_size)  # of one heat
        self._bits = torch.empty((self._rows, vocab_size), dtype=torch.int32, device=device)
        self._scratch = torch.empty_like(self._bits)
        self._bound = torch.empty((self._rows, vocab_size), dtype=torch.float32, device=device)

    def among(self, ids: Int64, weights: Float64, key: NDArray[np.int32]) -> int:
        """The winner among some `ids` of one row, which win in proportion to `weights`; `key`: [2] int32."""
        if len(ids) == 1:
            return int(ids[0])
        entries = self._table[torch.from_numpy(ids).to(self._device)]
        bits = noise.bits(entries, torch.from_numpy(key[None]).to(self._device))[0].cpu().numpy()
        if len(ids) > _ONE_HEAT:
            bound = weights / (bits + noise.HALF)
            leader = int(bound.argmax())
            u = (bits[leader] + noise.HALF) * noise.SCALE
            could_win = np.flatnonzero(bound >= bound[leader] * (1 - u) * _MARGIN)
            ids, weights, bits = ids[could_win], weights[could_win], bits[could_win]
        scores = weights / noise.exponentials(bits)
        return int(ids[scores == scores.max()].min())

    def over_all(
        self, logits_NV: torch.Tensor, highest: Float64, temperatures: Float64, keys: NDArray[np.int32]
    ) -> Int64:
        """[N] winners over the whole vocabulary of N rows. `highest`, `temperatures`: [N]; `keys`: [N, 2]."""
        n, width = logits_NV.shape
        coldness = 1 / temperatures
        heats = []
        for start in range(0, n, self._rows):
            heat = slice(start, start + self._rows)
            index, bits = self._first_heat(logits_NV[heat], highest[heat], coldness[heat], keys[heat])
            heats.append((index + start * width, bits))
        index = np.concatenate([index for index, _ in heats])
        rows = index // width
        logits = extremes.at(logits_NV, index).astype(np.float64)
        weights = np.exp((logits - highest[rows]) / temperatures[rows])
        scores = weights / noise.exponentials(np.concatenate([bits for _, bits in heats]))
        starts = np.searchsorted(rows, np.arange(n))
        is_winner = scores == np.maximum.reduceat(scores, starts)[rows]
        level = np.where(is_winner, index, np.iinfo(np.int64).max)
        return np.asarray(np.minimum.reduceat(level, starts) % width, dtype=np.int64)

    def _first_heat(
        self, logits_NV: torch.Tensor, highest: Float64, coldness: Float64, keys: NDArray[np.int32]
    ) -> tuple[Int64, NDArray[np.int32]]:
        """The entries that could win, at least one a row, as flat indices, and their bits."""
        n = len(logits_NV)
        bits, scratch, bound = self._bits[:n], self._scratch[:n], self._bound[:n]
        noise.bits(self._table, torch.from_numpy(keys).to(self._device), out=bits, scratch=scratch)
        torch.sub(logits_NV, self._column(highest), out=bound).mul_(self._column(coldness)).exp_()
        bound.div_(scratch.view(torch.float32).copy_(bits).add_(noise.HALF))
        leaders, fastest = extremes.best(bound)
        # u <= E <= u / (1 - u): nobody beats weight / u, and the leader finishes with (1 - u) of it at least.
        u = (extremes.at(bits, np.arange(n) * bits.shape[1] + leaders) + noise.HALF) * noise.SCALE
        index = extremes.reaching(bound, (fastest * (1 - u) * _MARGIN).astype(np.float32))
        return index, extremes.at(bits, index)

    def _column(self, values: Float64) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.float32)[:, None]).to(self._device)
