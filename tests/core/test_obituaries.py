"""Obituaries against a list of everything that ever happened."""

from hypothesis import given
from hypothesis import strategies as st

from asyncpage.core.obituaries import Obituaries, Obituary
from asyncpage.messages import RequestId

NAMES = [bytes([i]) * 32 for i in range(6)]


def test_a_name_that_is_stored_again_has_no_obituary() -> None:
    obituaries = Obituaries()
    obituaries.stored(NAMES[0])
    obituaries.removed(NAMES[0], 3, RequestId(7))
    assert obituaries.find(NAMES[0]) == Obituary(3, RequestId(7))
    assert obituaries.fates([NAMES[0]]) == [Obituary(3, RequestId(7))]
    obituaries.stored(NAMES[0])
    assert obituaries.find(NAMES[0]) is None
    assert obituaries.fates(NAMES[:2]) == ["held", None]


def test_after_a_reset_nobody_was_evicted_for_anybody() -> None:
    obituaries = Obituaries()
    obituaries.stored(NAMES[0])
    obituaries.stored(NAMES[1])
    obituaries.removed(NAMES[0], 3, RequestId(7))
    obituaries.cleared()
    assert obituaries.fates(NAMES[:2]) == [None, None]


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(NAMES), st.integers(0, 3), st.integers(0, 2)), max_size=60),
    st.integers(1, 4),
)
def test_the_last_removals_are_remembered_and_no_more(moves: list[tuple[bool, bytes, int, int]], most: int) -> None:
    obituaries = Obituaries(most)
    held: set[bytes] = set()
    dead: list[tuple[bytes, Obituary]] = []  # oldest first
    for is_stored, name, step, request in moves:
        if is_stored:
            obituaries.stored(name)
            held.add(name)
            dead = [one for one in dead if one[0] != name]
        elif name in held:
            obituaries.removed(name, step, RequestId(request))
            held.remove(name)
            dead = [*dead, (name, Obituary(step, RequestId(request)))][-most:]
        assert obituaries.fates(NAMES) == ["held" if name in held else dict(dead).get(name) for name in NAMES]
        assert len(obituaries) == len(dead)
