"""How a decoder's layers are grouped, against every other way to cut them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpage.models.attention import AttentionShape
from asyncpage.models.layer_group import MOST_GROUPS, group_layers


def shapes(windows: list[int]) -> list[AttentionShape]:
    return [AttentionShape(4, 2, 8, 8, window) for window in windows]


@pytest.mark.parametrize(
    ("windows", "sizes"),
    [
        ([0] * 30, [30]),
        ([512, 0] * 13, [13, 13]),
        ([512, 512, 512, 512, 512, 0] * 3, [3] * 6),
        (([1024] * 5 + [0]) * 4 + [1024] * 2, [4, 4, 4, 4, 4, 4, 2]),
        ([9, 0, 9], [1, 1, 1]),
    ],
    ids=["one shape", "equally many", "one of six", "one of six, and two more", "one of three"],
)
def test_groups_are_cut_so_that_blocks_are_full(windows: list[int], sizes: list[int]) -> None:
    assert [len(group) for group in group_layers(shapes(windows))] == sizes


@given(st.lists(st.sampled_from([0, 9, 512]), min_size=1, max_size=40))
def test_each_layer_is_in_one_group_of_its_shape_and_full_attention_comes_first(windows: list[int]) -> None:
    groups = group_layers(shapes(windows))
    assert sorted(layer for group in groups for layer in group) == list(range(len(windows)))
    seen = [{windows[layer] for layer in group} for group in groups]
    assert all(len(one) == 1 for one in seen)
    order = [next(iter(one)) for one in seen]
    assert order == sorted(order)
    assert len(groups) <= MOST_GROUPS
    room = max(map(len, groups)) * len(groups)
    counts = [windows.count(window) for window in {*windows}]
    for size in range(1, max(counts) + 1):
        cut = sum(-(-count // size) for count in counts)
        assert cut > MOST_GROUPS or room <= size * cut
