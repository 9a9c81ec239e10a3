"""A small executor for tests: a model over paged caches whose blocks are scattered, one pool of ids for all groups."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from asyncpage.backends.contract import Batch, DeviceInfo, Limits
from asyncpage.backends.memory import allocate_kv
from asyncpage.backends.registry import choose

CPU = DeviceInfo("cpu", "x86_64")
BLOCKS, BLOCK_SIZE = 257, 4


@dataclass
class Sequence:
    tokens: list[int]
    computed: int = 0
    tables: list[list[int]] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)


class PagedModel:
    """Runs steps of any mix of sequences; keeps the logits of every position."""

    def __init__(self, model, backend, kv_dtype="float32"):
        self.model = model
        self.specs = model.specs(kv_dtype, BLOCK_SIZE)
        limits = Limits(8, 256, 128)
        kind = choose(backend, self.specs, CPU)
        self.backends = [kind(spec, CPU, limits) for spec in self.specs]
        size = max(backend.workspace_bytes(limits) for backend in self.backends)
        self.workspace = torch.empty(size, dtype=torch.uint8)
        layout = kind.kv_layout(self.specs[0], CPU)
        self.kv = [allocate_kv(layout, BLOCKS, CPU).fill_(torch.nan) for _ in range(max(model.layer_slots) + 1)]
        self.free = (torch.randperm(BLOCKS - 1, generator=torch.Generator().manual_seed(1)) + 1).tolist()

    def add(self, tokens):
        return Sequence(list(tokens), tables=[[] for _ in self.specs])

    def step(self, *work):
        """Compute the next `count` tokens of each (sequence, count)."""
        counts = [count for _, count in work]
        tokens, positions = [], []
        for sequence, count in work:
            end = sequence.computed + count
            tokens += sequence.tokens[sequence.computed : end]
            positions += range(sequence.computed, end)
            for table in sequence.tables:
                while len(table) * BLOCK_SIZE < end:
                    table.append(self.free.pop())
        batches = [self._batch(work, counts, group) for group in range(len(self.specs))]
        plans = [backend.plan(batch, self.workspace) for backend, batch in zip(self.backends, batches, strict=True)]

        def attend(layer, q, k, v):
            group, kv = self.model.layer_groups[layer], self.kv[self.model.layer_slots[layer]]
            backend, plan, params = self.backends[group], plans[group], self.model.layer_params[layer]
            backend.write_kv(k, v, kv, plan, params)
            out = q.new_empty(*q.shape[:2], v.shape[2])
            backend.run(q, kv, out, plan, params)
            return out

        hidden = self.model.forward(torch.tensor(tokens), torch.tensor(positions), attend)
        logits = self.model.logits(hidden)
        for (sequence, count), rows in zip(work, logits.split(counts), strict=True):
            sequence.computed += count
            sequence.logits += rows
        return logits

    def _batch(self, work, counts, group):
        tables = [sequence.tables[group] for sequence, _ in work]
        width = max(map(len, tables)) + 1
        table = np.array([row + [10**6] * (width - len(row)) for row in tables], dtype=np.int32)
        cu_q = np.cumsum([0, *counts]).astype(np.int32)
        kv_len = np.array([sequence.computed + count for sequence, count in work], dtype=np.int32)
        slots = [
            row[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
            for row, (sequence, count) in zip(tables, work, strict=True)
            for at in range(sequence.computed, sequence.computed + count)
        ]
        tensors = [torch.from_numpy(array) for array in (cu_q, kv_len, table)]
        return Batch(
            len(work), sum(counts), max(counts), int(kv_len.max()), cu_q, kv_len, *tensors, slots=torch.tensor(slots)
        )


@pytest.fixture(scope="session")
def paged_model():
    """The class `PagedModel`."""
    return PagedModel
