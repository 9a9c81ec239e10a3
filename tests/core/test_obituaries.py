"""Obituaries against a list of everything that ever happened."""

from hypothesis import given
from hypothesis import strategies as st

from asyncpage.core.obituaries import Obituaries, Obituary
from asyncpage.messages import RequestId

NAMES = [bytes([i]) * 32 for i in range(6)]


def test_a_name_that_is_removed_again_has_the_latest_obituary() -> None:
    obituaries = Obituaries()
    obituaries.removed(NAMES[0], 3, RequestId(7))
    assert obituaries.find(NAMES[0]) == Obituary(3, RequestId(7))
    obituaries.removed(NAMES[0], 4, RequestId(8))
    assert obituaries.find(NAMES[0]) == Obituary(4, RequestId(8))
    assert obituaries.find(NAMES[1]) is None
    assert len(obituaries) == 1


def test_after_a_reset_nobody_was_evicted_for_anybody() -> None:
    obituaries = Obituaries()
    obituaries.removed(NAMES[0], 3, RequestId(7))
    obituaries.cleared()
    assert obituaries.knows_none(NAMES[:2])
    assert obituaries.find(NAMES[0]) is None


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3), st.integers(0, 2)), max_size=60),
    st.integers(1, 4),
)
def test_the_last_removals_are_remembered_and_no_more(moves: list[tuple[bytes, int, int]], most: int) -> None:
    obituaries = Obituaries(most)
    dead: list[tuple[bytes, Obituary]] = []  # oldest first
    for name, step, request in moves:
        obituaries.removed(name, step, RequestId(request))
        dead = [one for one in dead if one[0] != name]
        dead = [*dead, (name, Obituary(step, RequestId(request)))][-most:]
        assert [obituaries.find(one) for one in NAMES] == [dict(dead).get(one) for one in NAMES]
        assert obituaries.knows_none([one for one in NAMES if one not in dict(dead)])
        assert not obituaries.knows_none(NAMES)
        assert len(obituaries) == len(dead)
