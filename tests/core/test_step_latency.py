"""The latency model: what a step is charged for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpage.core.step_latency import StepLatency, chunk_pairs
from asyncpage.errors import UsageError


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), max_size=8))
def test_pairs_are_those_of_a_causal_mask_without_each_rows_last_token(rows: list[tuple[int, int]]) -> None:
    behind, counts = np.array(rows, dtype=np.int32).reshape(-1, 2).T
    masks = [np.tri(before + count, dtype=np.int64)[before:] for before, count in rows]
    assert chunk_pairs(behind + counts, counts) == sum(int(mask[:-1].sum()) for mask in masks)


def test_pairs_of_a_long_prompt_are_more_than_a_column_of_int32_holds() -> None:
    count = 100_000
    column = np.array([count], dtype=np.int32)
    assert chunk_pairs(column, column) == count * (count - 1) // 2 > 2**31


@pytest.mark.parametrize("name", StepLatency.__dataclass_fields__)
def test_a_coefficient_below_nought_is_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} of a latency model must be 0 or more seconds"):
        StepLatency(**{name: -1e-9}).check()
