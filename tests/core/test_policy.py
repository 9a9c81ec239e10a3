"""The built-in policies and the victim policies against sorts that are spelt out."""

from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.config import EngineConfig
from asyncpage.core.policy import VICTIM_POLICIES, Fcfs, LongestPrefix, Priority
from asyncpage.core.sampling import SamplingParams
from asyncpage.core.sequence import Sequence
from asyncpage.messages import RequestId, RequestOptions


def make(arrival: int, level: int = 0, hit_blocks: int = 0) -> Sequence:
    return Sequence(
        request=RequestId(arrival),
        tokens=array("i", [1]),
        prompt_tokens=1,
        limit=2,
        arrival=arrival,
        root=b"",
        names=(),
        sampling=SamplingParams(),
        options=RequestOptions(priority=level),
        seed=0,
        end_token_ids=(),
        bad_word_ids=(),
        hit_blocks=hit_blocks,
    )


def test_fcfs_goes_by_arrival() -> None:
    made = [make(2, level=-5, hit_blocks=9), make(0), make(1)]
    assert [s.arrival for s in sorted(made, key=Fcfs().key)] == [0, 1, 2]


def test_priority_goes_by_the_smallest_number_then_by_arrival() -> None:
    made = [make(0, level=2), make(1, level=-1), make(2, level=-1, hit_blocks=9), make(3)]
    assert [s.arrival for s in sorted(made, key=Priority().key)] == [1, 2, 3, 0]


def test_longest_prefix_goes_by_the_most_cached_blocks_then_by_arrival() -> None:
    made = [make(0), make(1, hit_blocks=3), make(2, hit_blocks=3), make(3, level=-9, hit_blocks=1)]
    assert [s.arrival for s in sorted(made, key=LongestPrefix().key)] == [1, 2, 3, 0]


ROWS = st.integers(0, 12).flatmap(
    lambda count: st.tuples(
        st.permutations(range(12)).map(lambda rows: rows[:count]),
        st.lists(st.integers(-(2**31) + 1, 2**31 - 1) | st.integers(-1, 1), min_size=12, max_size=12),
        st.permutations(range(12)),
        st.lists(st.integers(0, 3), min_size=12, max_size=12),
    )
)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@settings(max_examples=50, deadline=None)
@given(columns=ROWS)
def test_victims_are_the_same_rows_worst_first(dtype: type[np.int32] | type[np.int64], columns: tuple) -> None:
    rows, priority, admitted, computed = columns
    keys = {
        "last-admitted": lambda row: -admitted[row],
        "priority": lambda row: (-priority[row], -admitted[row]),
        "least-computed": lambda row: (computed[row], -admitted[row]),
    }
    order = np.array(rows, dtype=np.int32)
    for name, victims in VICTIM_POLICIES.items():
        found = victims(
            order,
            priority=np.array(priority, dtype=dtype),
            admitted=np.array(admitted, dtype=dtype),
            computed=np.array(computed, dtype=dtype),
        )
        assert found.dtype == np.int32
        assert found.tolist() == sorted(rows, key=keys[name])


def test_the_setting_offers_every_victim_policy() -> None:
    assert EngineConfig.__dataclass_fields__["preemption_policy"].metadata["choices"] == tuple(VICTIM_POLICIES)
