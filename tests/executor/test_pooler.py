"""Pooling of rows chunk by chunk: equal to the whole prompt's states pooled at once, in float64."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import ProtocolError
from asyncpage.executor.batch import BatchShape, PersistentBatch
from asyncpage.executor.pooler import Pooler, pool_whole
from asyncpage.messages import Int32, NewRow, Pooled, Pooling, RequestId

SHAPE = BatchShape(groups=1, block_size=4, blocks=100, max_model_len=64, max_rows=8, max_tokens=64)
WIDTH = 5


def new(row: int, length: int, pooling: Pooling | None, computed: int = 0) -> NewRow:
    tokens = np.arange(length, dtype=np.int32).tobytes()
    return NewRow(row, RequestId(row), tokens, length, computed, (b"",), SamplingParams(), 0, pooling=pooling)


class Rig:
    """A batch and its pooler, driven as the runner drives them."""

    def __init__(self) -> None:
        self.batch = PersistentBatch(SHAPE)
        self.pooler = Pooler()

    def add(self, row: NewRow) -> None:
        self.batch.add(row)
        self.pooler.add(row)

    def step(
        self, counts: dict[int, int], states: dict[int, torch.Tensor]
    ) -> tuple[tuple[Pooled, ...], dict[int, str]]:
        rows: Int32 = np.array(list(counts), dtype=np.int32)
        sizes: Int32 = np.array(list(counts.values()), dtype=np.int32)
        starts: Int32 = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        begins = {row: int(self.batch.computed[row]) for row in counts}
        hidden = torch.cat([states[row][begins[row] : begins[row] + count] for row, count in counts.items()])
        found = self.pooler.pool(self.batch, rows, sizes, starts, hidden)
        self.batch.advance(rows, sizes)
        return found


def exact(states: torch.Tensor, pooling: Pooling) -> Any:
    wide = states.double()
    vector = {"last": wide[-1], "cls": wide[0], "mean": wide.mean(0)}[pooling.kind]
    return (vector / vector.norm() if pooling.is_normalized else vector).numpy()


POOLINGS = st.builds(Pooling, st.sampled_from(("last", "mean", "cls")), st.booleans())


@settings(max_examples=150, deadline=None)
@given(
    wanted=st.lists(st.tuples(st.integers(1, 40), st.none() | POOLINGS), min_size=1, max_size=5),
    dice=st.randoms(use_true_random=False),
)
def test_however_rows_are_cut_each_gets_its_vector_once(wanted: list[tuple[int, Pooling | None]], dice: Random) -> None:
    generator = torch.Generator().manual_seed(len(wanted))
    states = {row: torch.randn(length, WIDTH, generator=generator) for row, (length, _) in enumerate(wanted)}
    rig = Rig()
    for row, (length, pooling) in enumerate(wanted):
        rig.add(new(row, length, pooling))
    left = {row: length for row, (length, _) in enumerate(wanted)}
    found: dict[int, bytes] = {}
    while left:
        chosen = dice.sample(sorted(left), dice.randint(1, len(left)))
        counts = {row: dice.randint(1, left[row]) for row in chosen}
        pooled, failed = rig.step(counts, states)
        assert not failed
        left = {row: rest - counts.get(row, 0) for row, rest in left.items() if rest > counts.get(row, 0)}
        for part in pooled:
            assert part.row not in found
            assert part.row not in left
            assert rig.batch.is_out[part.row]  # it samples nothing
            found[part.row] = part.embedding
    assert found.keys() == {row for row, (_, pooling) in enumerate(wanted) if pooling is not None}
    for row, (_, pooling) in enumerate(wanted):
        if pooling is not None:
            vector = np.frombuffer(found[row], dtype="<f4")
            np.testing.assert_allclose(vector, exact(states[row], pooling), atol=1e-6)
            if pooling.is_normalized:
                assert np.linalg.norm(vector.astype(np.float64)) == pytest.approx(1, abs=1e-6)
        else:
            assert not rig.batch.is_out[row]


def test_a_row_that_leaves_and_comes_again_begins_anew() -> None:
    rig, pooling = Rig(), Pooling("mean")
    states = {0: torch.ones(6, WIDTH)}
    rig.add(new(0, 6, pooling))
    rig.step({0: 4}, {0: 1000 * states[0]})
    rig.batch.remove(np.array([0], dtype=np.int32))
    rig.pooler.remove(0)
    rig.add(new(0, 6, replace(pooling, is_normalized=False)))
    [pooled], _ = rig.step({0: 6}, states)
    assert np.frombuffer(pooled.embedding, dtype="<f4").tolist() == [1.0] * WIDTH


def test_the_last_state_may_follow_what_the_cache_held_and_others_may_not() -> None:
    rig = Rig()
    rig.add(new(0, 6, Pooling("last"), computed=5))
    [pooled], _ = rig.step({0: 1}, {0: torch.eye(6, WIDTH)[[0, 1, 2, 3, 4, 2]]})
    assert np.frombuffer(pooled.embedding, dtype="<f4").tolist() == [0, 0, 1, 0, 0]
    for kind in ("mean", "cls"):
        with pytest.raises(ProtocolError, match="come from the cache"):
            rig.pooler.add(new(1, 6, Pooling(kind), computed=1))  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_states_that_are_not_numbers_fail_their_row_alone(bad: float) -> None:
    rig = Rig()
    states = {0: torch.ones(3, WIDTH), 1: torch.ones(3, WIDTH)}
    states[1][1, 2] = bad
    for row in (0, 1):
        rig.add(new(row, 3, Pooling("mean")))
    pooled, failed = rig.step({0: 3, 1: 3}, states)
    assert [part.row for part in pooled] == [0]
    assert failed.keys() == {1}
    assert "not numbers" in failed[1]
    assert rig.batch.is_out[:2].all()


def test_a_vector_of_zeros_stays_one() -> None:
    rig = Rig()
    rig.add(new(0, 2, Pooling("mean")))
    [pooled], _ = rig.step({0: 2}, {0: torch.tensor([[1.0] * WIDTH, [-1.0] * WIDTH])})
    assert np.frombuffer(pooled.embedding, dtype="<f4").tolist() == [0.0] * WIDTH


def test_low_precision_states_are_averaged_in_high_precision() -> None:
    states = torch.full((40, WIDTH), 0.1, dtype=torch.bfloat16)
    assert pool_whole(states, Pooling("mean"))[0].item() == pytest.approx(float(states[0, 0]), abs=1e-12)
