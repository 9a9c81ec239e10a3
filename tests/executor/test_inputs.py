"""Packed inputs: against a loop over rows and tokens."""

import numpy as np
import pytest
import torch

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import ProtocolError
from asyncpage.executor.batch import BatchShape, PersistentBatch
from asyncpage.executor.inputs import InputBuffers
from asyncpage.messages import NewRow, RequestId

SHAPE = BatchShape(groups=2, block_size=4, blocks=60, max_model_len=40, max_rows=4, max_tokens=64)
CPU = torch.device("cpu")


def batch_with(lengths: dict[int, tuple[int, int]]) -> PersistentBatch:
    """Rows with (known, computed) tokens, each with blocks of its own in both groups."""
    batch = PersistentBatch(SHAPE)
    blocks = iter(np.random.default_rng(1).permutation(np.arange(1, 60)).tolist())
    for row, (known, computed) in lengths.items():
        tokens = np.arange(known, dtype=np.int32) + 100 * row
        tables = tuple(
            np.array([next(blocks) for _ in range(-(-known // 4))], dtype=np.int32).tobytes() for _ in range(2)
        )
        batch.add(NewRow(row, RequestId(row), tokens.tobytes(), known, computed, tables, SamplingParams(), 0))
    return batch


CASES = [
    ({0: (5, 4)}, [0], [1]),
    ({0: (5, 4), 3: (9, 8), 1: (1, 0)}, [3, 0, 1], [1, 1, 1]),
    ({0: (20, 0), 2: (30, 7), 3: (9, 8)}, [2, 3, 0], [11, 1, 20]),
    ({1: (16, 4), 2: (16, 4)}, [1, 2], [12, 12]),
]


@pytest.mark.parametrize(("lengths", "rows", "counts"), CASES)
def test_a_step_is_packed_row_after_row(
    lengths: dict[int, tuple[int, int]], rows: list[int], counts: list[int]
) -> None:
    batch = batch_with(lengths)
    inputs = InputBuffers(SHAPE, CPU).pack(batch, np.array(rows, dtype=np.int32), np.array(counts, dtype=np.int32))
    tokens, positions = [], []
    slots: list[list[int]] = [[], []]
    for row, count in zip(rows, counts, strict=True):
        for at in range(lengths[row][1], lengths[row][1] + count):
            tokens.append(100 * row + at)
            positions.append(at)
            for group in range(2):
                slots[group].append(int(batch.tables[group, row, at // 4]) * 4 + at % 4)
    assert inputs.tokens.tolist() == tokens
    assert inputs.positions.tolist() == positions
    assert inputs.starts.tolist() == [0, *np.cumsum(counts).tolist()]
    ends = [lengths[row][1] + count for row, count in zip(rows, counts, strict=True)]
    for group, packed in enumerate(inputs.batches):
        assert packed.slots.tolist() == slots[group]
        assert packed.kv_len.tolist() == packed.kv_len_host.tolist() == ends
        assert packed.cu_q.tolist() == packed.cu_q_host.tolist() == inputs.starts.tolist()
        assert (packed.n_seqs, packed.n_tokens) == (len(rows), sum(counts))
        assert (packed.max_q, packed.max_kv) == (max(counts), max(ends))
        assert packed.uniform_q == (counts[0] if len(set(counts)) == 1 else None)
        for index, (row, end) in enumerate(zip(rows, ends, strict=True)):
            needed = -(-end // 4)
            assert packed.block_table[index, :needed].tolist() == batch.tables[group, row, :needed].tolist()


def test_a_token_without_a_block_is_refused() -> None:
    batch = batch_with({0: (9, 0)})
    batch.tables[1, 0, 2] = 0
    buffers = InputBuffers(SHAPE, CPU)
    buffers.pack(batch, np.array([0], dtype=np.int32), np.array([8], dtype=np.int32))
    with pytest.raises(ProtocolError, match="never named"):
        buffers.pack(batch, np.array([0], dtype=np.int32), np.array([9], dtype=np.int32))
