"""How the CPU backend cuts a batch: by like length, within its memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.backends.contract import AttentionSpec, Batch, DeviceInfo, Limits
from asyncpage.backends.cpu import CpuBackend
from asyncpage.backends.cpu_plan import MAX_GATHER_BYTES, MAX_PADDING, MAX_SEQUENCES
from asyncpage.errors import ExecutorError

SPEC = AttentionSpec("mha", 6, 2, 64, 64, "float32", "float32", 16)
CPU = DeviceInfo("cpu", "x86_64")
TOKEN_BYTES = 2 * 2 * 64 * 4


def batch_of(sequences, block_size=16):
    """A batch of (tokens, length) whose sequence i owns blocks 100 * i and up."""
    counts = [count for count, _ in sequences]
    lengths = np.array([length for _, length in sequences], dtype=np.int32)
    cu_q = np.cumsum([0, *counts]).astype(np.int32)
    table = 100 * np.arange(len(sequences), dtype=np.int32)[:, None] + np.arange(100, dtype=np.int32)
    slots = torch.arange(int(cu_q[-1]))
    tensors = [torch.from_numpy(array) for array in (cu_q, lengths, table)]
    return Batch(len(sequences), sum(counts), max(counts), int(lengths.max()), cu_q, lengths, *tensors, slots=slots)


def plan_of(sequences, spec=SPEC):
    limits = Limits(64, 4096, 1600)
    backend = CpuBackend(spec, CPU, limits)
    workspace = torch.empty(backend.workspace_bytes(limits), dtype=torch.uint8)
    return backend.plan(batch_of(sequences), workspace)


lengths = st.integers(1, 1600)
sequences = st.lists(
    st.one_of(
        st.tuples(st.just(1), lengths), lengths.flatmap(lambda n: st.tuples(st.integers(1, min(n, 40)), st.just(n)))
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(sequences, st.sampled_from([0, 1, 50, 333]), st.sampled_from(["float32", "float16"]))
def test_every_token_attends_once_to_all_that_it_sees_and_to_nothing_else(sequences, window, kv_dtype):
    plan = plan_of(sequences, replace(SPEC, window=window, kv_dtype=kv_dtype))
    starts = np.cumsum([0] + [count for count, _ in sequences])
    rows = torch.cat([piece.rows for piece in plan.pieces])
    assert sorted(rows.tolist()) == list(range(starts[-1]))
    for piece in plan.pieces:
        index = piece.index.view(piece.sequences, -1)
        mask = piece.mask
        if mask is None and piece.queries > 1:
            mask = torch.zeros(piece.queries, index.shape[1]).masked_fill(
                torch.ones(piece.queries, index.shape[1], dtype=torch.bool).triu(1), -torch.inf
            )[None, None]
        if mask is None:
            mask = torch.zeros(piece.sequences, 1, 1, index.shape[1])
        for at, row in enumerate(piece.rows.tolist()):
            sequence = int(np.searchsorted(starts, row, side="right")) - 1
            count, length = sequences[sequence]
            position = length - count + row - starts[sequence]
            seen = index[at // piece.queries][mask[at // piece.queries, 0, at % piece.queries] == 0]
            first = max(0, position + 1 - window) if window else 0
            base = 100 * 16 * sequence  # this sequence's blocks, and so its slots, lie in a row
            assert seen.tolist() == list(range(base + first, base + position + 1))


@settings(max_examples=60, deadline=None)
@given(st.lists(lengths, min_size=1, max_size=64))
def test_single_tokens_are_gathered_within_the_limits_of_padding_and_memory(lengths):
    for piece in plan_of([(1, length) for length in lengths]).pieces:
        assert piece.sequences <= MAX_SEQUENCES
        padded = len(piece.index)
        if piece.sequences > 1:
            assert padded * TOKEN_BYTES <= MAX_GATHER_BYTES
            real = padded if piece.mask is None else int((piece.mask == 0).sum())
            assert padded - real <= MAX_PADDING * padded


def test_like_sequences_share_a_gather():
    plan = plan_of([(1, 100)] * 8)
    assert [piece.sequences for piece in plan.pieces] == [8]
    assert plan.pieces[0].mask is None


def test_a_tree_mask_is_refused():
    batch = replace(batch_of([(1, 4)]), mask=torch.zeros(1, 1, dtype=torch.uint8))
    limits = Limits(1, 1, 4)
    with pytest.raises(ExecutorError, match="takes no tree mask"):
        CpuBackend(SPEC, CPU, limits).plan(batch, torch.empty(CpuBackend(SPEC, CPU, limits).workspace_bytes(limits)))
