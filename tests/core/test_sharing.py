"""Who waits for whose blocks, and that everybody is woken: by hand, and any history against brute force."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core.sharing import Sharing
from asyncpage.messages import RequestId

A = tuple(b"a%d" % i for i in range(6))


def park(sharing: Sharing, request: int, names: Sequence[bytes], first: int = 0) -> bool:
    return sharing.park(RequestId(request), names, first)


def test_a_request_waits_for_the_last_block_that_the_row_promises_and_no_longer() -> None:
    sharing = Sharing()
    sharing.promise(3, A[:4])
    assert park(sharing, 1, A)
    assert park(sharing, 2, A[:2])
    assert len(sharing) == 2
    woken = []
    for name in A[:4]:
        sharing.kept(3, name)
        woken.append(sharing.woken())
    assert woken == [(), (2,), (), (1,)]
    assert len(sharing) == 0


@pytest.mark.parametrize("first", [2, 3])
def test_nobody_waits_whose_next_block_nobody_promises(first: int) -> None:
    sharing = Sharing()
    sharing.promise(3, A[:2])
    assert not park(sharing, 1, A[:3], first)  # 3: it misses no block at all
    sharing.kept(3, A[0])
    assert not park(sharing, 2, A)  # it was evicted meanwhile, so nobody computes it
    sharing.broken(3)
    assert sharing.woken() == ()


def test_blocks_of_one_name_are_one_promise() -> None:
    """Digests are never trusted: where two blocks of a prompt have the same, nobody may fall over it."""
    sharing = Sharing()
    sharing.promise(3, (A[0], A[0], A[1], A[0]))
    assert park(sharing, 1, (A[0], A[0]))
    sharing.kept(3, A[0])
    assert sharing.woken() == (1,)
    assert park(sharing, 2, A[1:2])
    sharing.broken(3)
    assert sharing.woken() == (2,)
    assert not sharing.is_promised


def test_a_block_that_two_rows_promise_is_the_firsts() -> None:
    sharing = Sharing()
    sharing.promise(0, A[:2])
    sharing.promise(1, A[:4])  # it may not read the cache, so it computes all four
    assert park(sharing, 1, A)
    assert park(sharing, 2, A, 2)
    sharing.kept(1, A[0])  # the other has overtaken: it waits for what was promised first
    sharing.kept(1, A[1])
    assert sharing.woken() == ()
    sharing.kept(0, A[0])
    sharing.kept(0, A[1])
    assert sharing.woken() == (1,)
    sharing.kept(1, A[2])
    sharing.kept(1, A[3])
    assert sharing.woken() == (2,)


def test_a_row_that_ends_wakes_all_who_wait_for_it_in_the_order_of_its_promises() -> None:
    sharing = Sharing()
    sharing.promise(0, A[:3])
    sharing.promise(1, [b"other"])
    for request, names in ((1, A[:3]), (2, A[:1]), (3, A[:3]), (4, [b"other"])):
        assert park(sharing, request, names)
    sharing.broken(0)
    assert sharing.woken() == (2, 1, 3)
    assert sharing.woken() == ()
    assert not park(sharing, 1, A)
    sharing.broken(0)
    sharing.clear()
    assert sharing.woken() == (4,)
    assert len(sharing) == 0


def test_who_leaves_is_not_woken_and_takes_no_room() -> None:
    sharing = Sharing()
    sharing.promise(0, A[:2])
    for request in range(1000):
        assert park(sharing, request, A[:2])
        if request != 7:
            sharing.left(RequestId(request))
    assert len(sharing) == 1
    sharing.broken(0)
    assert sharing.woken() == (7,)


def test_what_one_row_did_not_keep_the_next_can_promise() -> None:
    sharing = Sharing()
    sharing.promise(0, A[:2])
    sharing.broken(0)
    sharing.promise(0, A[:3])
    assert park(sharing, 1, A[:3])
    for name in A[:3]:
        sharing.kept(0, name)
    assert sharing.woken() == (1,)


# --- any history ------------------------------------------------------------------------------------------------------

# Names with common beginnings, as a chain has them.


def chain(branches: Sequence[int]) -> tuple[bytes, ...]:
    return tuple(bytes(branches[: i + 1]) for i in range(len(branches)))


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("promise"), st.lists(st.integers(0, 1), min_size=1, max_size=6), st.integers(0, 3)),
        st.tuples(st.just("park"), st.lists(st.integers(0, 1), min_size=1, max_size=6), st.integers(0, 6)),
        st.tuples(st.just("compute"), st.integers(0, 4)),
        st.tuples(st.just("end"), st.integers(0, 4)),
        st.tuples(st.just("leave"), st.integers(0, 5)),
        st.tuples(st.just("clear")),
    ),
    max_size=50,
)


@settings(max_examples=300, deadline=None)
@given(moves=MOVES)
def test_every_parked_request_is_woken_once_and_waits_only_for_a_row_that_runs(moves: list[tuple[object, ...]]) -> None:
    sharing = Sharing()
    rows: dict[int, list[bytes]] = {}  # what each row has still to compute, the next first
    owed: dict[bytes, int] = {}  # the row that promised a name first
    parked: dict[RequestId, list[bytes]] = {}  # the name that each waits for, or one of these
    woken: list[RequestId] = []
    request = RequestId(0)

    def check(resolved: Sequence[bytes]) -> None:
        for name in resolved:
            del owed[name]
        told = sharing.woken()
        assert len(told) == len(set(told))
        for one in told:
            assert not set(parked.pop(one)).isdisjoint(resolved)
        for names in parked.values():
            assert any(name in owed for name in names)
            assert len(names) > 1 or names[0] not in resolved
        woken.extend(told)
        assert len(sharing) == len(parked)

    for move in moves:
        match move:
            case ("promise", list(branches), int(known)):
                row = next(i for i in range(len(rows) + 1) if i not in rows)
                names = chain(branches)[known:]
                rows[row] = list(names)
                for name in names:
                    owed.setdefault(name, row)
                sharing.promise(row, names)
                check([])
            case ("park", list(branches), int(first)):
                names = chain(branches)
                request = RequestId(request + 1)
                row_of_next = owed.get(names[first]) if first < len(names) else None
                assert sharing.park(request, names, first) == (row_of_next is not None)
                if row_of_next is not None:
                    same = [i for i in range(first, len(names)) if owed.get(names[i]) == row_of_next]
                    is_run = same == list(range(first, same[-1] + 1))  # it may have a gap that another row fills
                    parked[request] = [names[same[-1]]] if is_run else [names[i] for i in same]
                check([])
            case ("leave", int(which)) if parked:
                one = sorted(parked)[which % len(parked)]
                del parked[one]
                sharing.left(one)
                sharing.left(one)
                check([])
            case ("compute", int(row)) if rows.get(row):
                name = rows[row].pop(0)
                sharing.kept(row, name)
                check([name] if owed.get(name) == row else [])
            case ("end", int(row)) if row in rows:
                del rows[row]
                sharing.broken(row)
                check([name for name, owner in owed.items() if owner == row])
            case ("clear",):
                rows.clear()
                sharing.clear()
                check(list(owed))
    for row in list(rows):  # at the latest when its row ends
        sharing.broken(row)
        check([name for name, owner in owed.items() if owner == row])
    assert not parked
    assert len(woken) == len(set(woken))
