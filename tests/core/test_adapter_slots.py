"""Slots of adapters: never more than there are, and whoever waits first gets one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core.adapter_slots import AdapterSlots
from asyncpage.errors import ProtocolError


def picked(slots: AdapterSlots, waiting: str) -> str:
    """Of adapters that wait in this order, one letter each, those that may be offered a row; `-` has none."""
    lets = slots.pick().lets
    return "".join(one for one in waiting if lets("" if one == "-" else one))


def test_rows_of_an_adapter_share_its_slot_and_rows_without_one_take_none() -> None:
    slots = AdapterSlots(2)
    assert [slots.enter(adapter) for adapter in ("a", "b", "a", "")] == [1, 2, 1, 0]
    slots.leave("a")
    with pytest.raises(ProtocolError, match="all 2 are in use"):
        slots.enter("c")
    slots.leave("a")
    assert slots.enter("c") == 1


def test_an_adapter_that_comes_back_finds_its_slot_unless_another_needed_it() -> None:
    slots = AdapterSlots(2)
    for adapter in "ab":
        slots.enter(adapter)
        slots.leave(adapter)
    assert slots.enter("b") == 2
    assert slots.enter("a") == 1
    slots.leave("b")
    slots.leave("a")
    assert slots.enter("c") == 2  # the one that was idle for longer
    assert slots.enter("a") == 1


def test_one_that_waits_for_a_slot_is_passed_by_those_that_need_none() -> None:
    slots = AdapterSlots(2)
    for adapter in "aab":
        slots.enter(adapter)
    assert picked(slots, "c-a-") == "-a-"


def test_the_adapter_with_the_fewest_rows_takes_nobody_behind_one_that_waits() -> None:
    slots = AdapterSlots(2)
    for adapter in "aab":
        slots.enter(adapter)
    assert picked(slots, "bcbacb") == "ba"
    slots.leave("b")
    assert picked(slots, "bcb") == "bb"  # an older one may have the slot again
    assert picked(slots, "cb") == "c"


def test_every_adapter_that_waits_closes_another() -> None:
    slots = AdapterSlots(3)
    for adapter in "aaabbc":
        slots.enter(adapter)
    assert picked(slots, "dcba") == "ba"
    assert picked(slots, "decba") == "a"
    assert picked(slots, "defcba-") == "-"


EVENTS = st.lists(st.tuples(st.sampled_from(["comes", "ends", "step"]), st.integers(0, 30)), max_size=80)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), EVENTS)
def test_there_is_always_a_slot_for_whoever_is_let_in_and_nobody_waits_for_ever(
    count: int, rows: int, events: list[tuple[str, int]]
) -> None:
    slots = AdapterSlots(count)
    waiting: list[str] = []
    running: list[str] = []

    def step(most: int) -> None:
        lets = slots.pick().lets
        for one in [one for one in waiting if lets(one)][: min(rows - len(running), most)]:
            waiting.remove(one)
            running.append(one)
            slot = slots.enter(one)
            assert (slot == 0) == (one == "")
        assert len({one for one in running if one}) <= count

    def end(place: int) -> None:
        if running:
            slots.leave(running.pop(place % len(running)))

    for kind, number in events:
        if kind == "comes":
            waiting.append(["", "a", "b", "c", "d"][number % 5])
        elif kind == "ends":
            end(number)
        else:
            step(number)
    for _ in range(2 * (len(waiting) + len(running)) + 1):  # one is let in, or one ends
        before = len(waiting)
        step(1)
        if len(waiting) == before:
            end(0)
    assert not waiting


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=6))
def test_a_stream_of_others_does_not_keep_the_first_waiting(others: list[str]) -> None:
    """Two slots are held by adapters whose requests never stop coming; z came before all that come from now on."""
    slots = AdapterSlots(2)
    running = ["a", "a", "b", "b", "b"]
    for one in running:
        slots.enter(one)
    for turn in range(20):
        lets = slots.pick().lets
        let_in = [one for one in ["z", *others * 3] if lets(one)]
        if "z" in let_in:
            return
        slots.leave(running.pop(0))
        for one in let_in[: 5 - len(running)]:
            slots.enter(one)
            running.append(one)
        assert turn < 12
    pytest.fail("z waits for ever")
