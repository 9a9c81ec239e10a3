"""What the far end of an executor is told before a step: each grammar once, no more than it may keep."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core import lessons as module
from asyncpage.core.lessons import Lessons
from asyncpage.core.sampling import SamplingParams
from asyncpage.messages import (
    EMPTY,
    Adapter,
    Constraint,
    LearnAdapter,
    LearnGrammar,
    LearnVocabulary,
    NewRow,
    RequestId,
    Step,
)

VOCABULARY = LearnVocabulary(b"ab", np.array([1, 1], dtype=np.int32))


def constraint(number: int, size: int = 10) -> Constraint:
    return Constraint(bytes([number]), bytes(size))


def step(*constraints: Constraint | None) -> Step:
    added = tuple(
        NewRow(row, RequestId(row), b"\0\0\0\0", 1, 0, (), SamplingParams(), 0, constraint=one)
        for row, one in enumerate(constraints)
    )
    return Step(1, 1, EMPTY, EMPTY, added=added)


def digests(told: Sequence[object]) -> list[bytes]:
    return [lesson.constraint.digest for lesson in told if isinstance(lesson, LearnGrammar)]


def test_a_step_without_grammars_is_sent_as_it_is() -> None:
    plain = step(None)
    assert Lessons().before(plain) == ((), plain)


def test_vocabulary_and_grammar_are_told_once_and_rows_name_them() -> None:
    lessons = Lessons()
    assert lessons.learn(VOCABULARY, is_there=False) == ()
    told, sent = lessons.before(step(constraint(1), None, constraint(1)))
    assert told == (VOCABULARY, LearnGrammar(constraint(1)))
    assert [new.constraint for new in sent.added] == [Constraint(bytes([1]), b""), None, Constraint(bytes([1]), b"")]
    assert digests(lessons.before(step(constraint(1), constraint(2)))[0]) == [bytes([2])]


def test_a_far_end_that_is_there_is_told_the_vocabulary_at_once() -> None:
    lessons = Lessons()
    assert lessons.learn(VOCABULARY, is_there=True) == (VOCABULARY,)
    assert lessons.before(step(constraint(1)))[0] == (LearnGrammar(constraint(1)),)


def test_a_new_process_is_told_everything_again() -> None:
    lessons = Lessons()
    lessons.learn(VOCABULARY, is_there=True)
    lessons.before(step(constraint(1)))
    lessons.restart()
    assert lessons.before(step(constraint(1)))[0] == (VOCABULARY, LearnGrammar(constraint(1)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.none() | st.integers(0, 9), max_size=5), max_size=20), st.data())
def test_the_far_end_has_what_a_step_names_and_never_too_much(
    plan: list[list[int | None]], data: st.DataObject
) -> None:
    sizes = data.draw(st.lists(st.integers(0, 60), min_size=10, max_size=10))
    with patch.object(module, "MOST_BYTES", 100), patch.object(module, "MOST_GRAMMARS", 4):
        lessons = Lessons()
        far: dict[bytes, int] = {}
        for numbers in plan:
            if data.draw(st.integers(0, 9)) == 0:
                lessons.restart()
                far.clear()
            told, sent = lessons.before(
                step(*(None if number is None else constraint(number, sizes[number]) for number in numbers))
            )
            for lesson in told:
                assert isinstance(lesson, LearnGrammar)
                for digest in lesson.forget:
                    del far[digest]
                assert lesson.constraint.digest not in far
                far[lesson.constraint.digest] = len(lesson.constraint.compiled)
            named = {new.constraint.digest for new in sent.added if new.constraint is not None}
            assert named == {bytes([number]) for number in numbers if number is not None}
            assert named <= far.keys()
            if told:
                assert far.keys() == named or (len(far) <= 4 and sum(far.values()) <= 100)


A, B = Adapter("a" * 64, "/a"), Adapter("b" * 64, "/b")


def adapted(*slots: tuple[int, Adapter]) -> Step:
    added = tuple(
        NewRow(row, RequestId(row), b"\0\0\0\0", 1, 0, (), SamplingParams(), 0, adapter_slot=slot, lora=adapter)
        for row, (slot, adapter) in enumerate(slots)
    )
    return Step(1, 1, EMPTY, EMPTY, added=added)


def test_an_adapter_is_told_when_its_slot_holds_another_and_rows_name_the_slot_alone() -> None:
    lessons = Lessons()
    told, sent = lessons.before(adapted((1, A), (1, A), (2, B)))
    assert told == (LearnAdapter(1, A), LearnAdapter(2, B))
    assert [(new.adapter_slot, new.lora) for new in sent.added] == [(1, None), (1, None), (2, None)]
    assert lessons.before(adapted((2, B)))[0] == ()
    assert lessons.before(adapted((1, B)))[0] == (LearnAdapter(1, B),)
    assert lessons.before(adapted((1, A)))[0] == (LearnAdapter(1, A),)


def test_an_adapter_that_was_loaded_from_elsewhere_is_told_anew() -> None:
    lessons = Lessons()
    moved = Adapter(A.identity, "/moved")
    lessons.before(adapted((1, A)))
    assert lessons.before(adapted((1, moved)))[0] == (LearnAdapter(1, moved),)


def test_a_new_process_is_told_its_adapters_again() -> None:
    lessons = Lessons()
    lessons.before(adapted((1, A)))
    lessons.restart()
    assert lessons.before(adapted((1, A)))[0] == (LearnAdapter(1, A),)
