"""Rows in a policy's order, against sorting afresh."""

from hypothesis import given
from hypothesis import strategies as st

from asyncpage.core.row_order import RowOrder


@given(moves=st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 3)), max_size=40))
def test_the_order_is_that_of_the_keys_of_whoever_lives(moves: list[tuple[int, int]]) -> None:
    order = RowOrder(6)
    keys: dict[int, tuple[int, int]] = {}
    for arrival, (row, rank) in enumerate(moves):
        if row in keys:
            order.remove(row)
            del keys[row]
        else:
            keys[row] = (rank, arrival)
            order.add(row, keys[row])
        assert order.column().tolist() == sorted(keys, key=keys.__getitem__)
    assert order.column() is order.column()
