"""The persistent batch: what it holds after a step's differences, and which steps it refuses."""

import numpy as np
import pytest

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import ProtocolError
from asyncpage.executor.batch import BatchShape, PersistentBatch
from asyncpage.messages import NewRow, RequestId, Step

SHAPE = BatchShape(groups=2, block_size=4, blocks=10, max_model_len=20, max_rows=3, max_tokens=12)


def column(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def new_row(row: int = 0, known: int = 5, computed: int = 0, tables: tuple[tuple[int, ...], ...] = ((1,), (2,))):
    tokens = np.arange(known, dtype=np.int32).tobytes()
    columns = tuple(column(*table).tobytes() for table in tables)
    return NewRow(row, RequestId(row), tokens, min(3, known), computed, columns, SamplingParams(), 0)


def batch_of(*new: NewRow) -> PersistentBatch:
    batch = PersistentBatch(SHAPE)
    for one in new:
        batch.add(one)
    return batch


def step(rows: tuple[int, ...], counts: tuple[int, ...]) -> Step:
    return Step(1, 1, column(*rows), column(*counts))


def test_a_row_holds_its_request_and_grows_by_what_it_computes_and_gains() -> None:
    batch = batch_of(new_row(2, known=5, computed=4))
    assert batch.known_of(2).tolist() == [0, 1, 2, 3, 4]
    batch.place_blocks(np.array([[2, 1, 3, 9], [2, 0, 1, 8]], dtype=np.int32))
    assert batch.tables[:, 2].tolist() == [[1, 8, 0, 0, 0], [2, 0, 0, 9, 0]]
    rows, counts = batch.chosen(step((2,), (1,)))
    batch.advance(rows, counts)
    batch.append(rows, column(77))
    assert (batch.computed[2], batch.known[2]) == (5, 6)
    assert batch.known_of(2).tolist() == [0, 1, 2, 3, 4, 77]


def test_a_row_can_be_used_again_and_inherits_no_block() -> None:
    batch = batch_of(new_row(0, tables=((1, 2, 3), (4, 5, 6))))
    batch.remove(column(0))
    batch.add(new_row(0, known=2))
    assert batch.tables[:, 0].tolist() == [[1, 0, 0, 0, 0], [2, 0, 0, 0, 0]]
    assert batch.known_of(0).tolist() == [0, 1]


def test_row_numbers_beyond_the_first_are_given_room() -> None:
    batch = batch_of(new_row(1), new_row(40, known=7))
    assert batch.known_of(40).tolist() == list(range(7))
    assert batch.known_of(1).tolist() == list(range(5))
    assert not batch.lives[39]


def test_a_row_that_failed_alone_is_left_out_until_it_is_removed() -> None:
    batch = batch_of(new_row(0), new_row(1))
    batch.is_out[0] = True
    rows, counts = batch.chosen(step((0, 1), (9, 5)))  # whatever a step in flight asks of it
    assert (rows.tolist(), counts.tolist()) == ([1], [5])
    batch.remove(column(0))
    batch.add(new_row(0))
    assert batch.chosen(step((0, 1), (5, 5)))[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("rows", "counts", "word"),
    [
        ((1,), (1,), "holds no request"),
        ((-1,), (1,), "holds no request"),
        ((99,), (1,), "holds no request"),
        ((0, 0), (1, 1), "twice"),
        ((0,), (0,), "no token"),
        ((0,), (6,), "does not have"),
        ((2,), (13,), "12 are the most"),
        ((0,), (1, 1), "2 counts"),
        ((0, 2, 0, 2), (1, 1, 1, 1), "3 rows are the most"),
    ],
)
def test_a_step_that_does_not_fit_is_refused(rows: tuple[int, ...], counts: tuple[int, ...], word: str) -> None:
    batch = batch_of(new_row(0), new_row(2, known=20))
    with pytest.raises(ProtocolError, match=word):
        batch.chosen(step(rows, counts))


@pytest.mark.parametrize(
    ("new", "word"),
    [
        (new_row(0), "taken"),
        (new_row(-1), "numbered"),
        (new_row(10**9), "numbered"),
        (new_row(1, known=21), "20 are the most"),
        (new_row(1, known=0), "at least one"),
        (new_row(1, computed=5), "at least one"),
        (new_row(1, computed=-1), "at least one"),
        (new_row(1, tables=((1,),)), "1 block tables"),
        (new_row(1, tables=((1,), (1,) * 6)), "5 are the most"),
        (new_row(1, tables=((10,), (1,))), "the pool has 10"),
        (new_row(1, tables=((-1,), (1,))), "the pool has 10"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(new: NewRow, word: str) -> None:
    with pytest.raises(ProtocolError, match=word):
        batch_of(new_row(0)).add(new)


@pytest.mark.parametrize("row", [(1, 0, 0, 1), (0, 2, 0, 1), (0, -1, 0, 1), (0, 0, 5, 1), (0, 0, 0, 10)])
def test_a_block_without_a_place_is_refused(row: tuple[int, ...]) -> None:
    with pytest.raises(ProtocolError):
        batch_of(new_row(0)).place_blocks(np.array([row], dtype=np.int32))


def moving(**moves: list[tuple[int, ...]]) -> Step:
    """A step that has nothing but these moves of blocks."""
    return Step(1, 1, column(), column(), **{name: np.array(rows, dtype=np.int32) for name, rows in moves.items()})


@pytest.mark.parametrize("pair", [(0, 1), (1, 0), (1, 10), (-1, 2)])
def test_a_copy_from_or_to_no_block_is_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(ProtocolError):
        batch_of().check_moves(moving(copies=[(*pair, 1)]))


@pytest.mark.parametrize("block", [0, 10, -1])
def test_no_block_is_neither_saved_nor_loaded(block: int) -> None:
    with pytest.raises(ProtocolError):
        batch_of().check_moves(moving(saves=[(block, 3)]))
    with pytest.raises(ProtocolError):
        batch_of().check_moves(moving(loads=[(3, block)]))


@pytest.mark.parametrize("tokens", [0, 5, -1])
def test_a_copy_of_no_tokens_or_of_more_than_a_block_has_is_refused(tokens: int) -> None:
    batch_of().check_moves(moving(copies=[(1, 2, 1), (1, 3, 4)]))
    with pytest.raises(ProtocolError, match="1 to 4 can be"):
        batch_of().check_moves(moving(copies=[(1, 2, tokens)]))


def test_two_blocks_into_one_are_refused() -> None:
    batch_of().check_moves(moving(copies=[(1, 2, 4), (1, 3, 4)], loads=[(0, 4), (0, 5)], saves=[(2, 1), (2, 2)]))
    for moves in (
        {"copies": [(1, 3, 4), (2, 3, 4)]},
        {"loads": [(0, 3), (1, 3)]},
        {"copies": [(1, 3, 4)], "loads": [(0, 3)]},
    ):
        with pytest.raises(ProtocolError, match="into one"):
            batch_of().check_moves(moving(**moves))
    with pytest.raises(ProtocolError, match="into one slot"):
        batch_of().check_moves(moving(saves=[(1, 3), (2, 3)]))


def test_removing_an_empty_row_is_refused() -> None:
    with pytest.raises(ProtocolError, match="removes"):
        batch_of(new_row(0)).remove(column(0, 1))
