"""The search for the poison, against a model of what breaks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpage.core.quarantine import Quarantine
from asyncpage.messages import RequestId


def suspects(*requests: int, goal: int = 8) -> dict[RequestId, int]:
    return {RequestId(request): goal for request in requests}


def test_a_failed_step_halves_its_requests_once_and_then_runs_them_alone() -> None:
    quarantine = Quarantine()
    assert quarantine.step_failed(suspects(1, 2, 3, 4)) is None
    assert quarantine.allowed == {1, 2}
    quarantine.step_finished(suspects(1, 2))
    assert quarantine.allowed == {3, 4}
    assert quarantine.step_failed(suspects(3, 4)) is None
    assert quarantine.allowed == {3}
    assert quarantine.step_failed(suspects(3)) == 3
    assert quarantine.allowed == {4}
    quarantine.step_finished(suspects(4))
    assert quarantine.allowed is None


def test_a_suspect_is_cleared_only_past_the_point_where_it_failed() -> None:
    quarantine = Quarantine()
    quarantine.step_failed(suspects(1, 2, goal=8))
    quarantine.step_finished({RequestId(1): 4})
    assert quarantine.allowed == {1}
    quarantine.step_finished({RequestId(1): 8})
    assert quarantine.allowed == {2}


def test_one_loss_is_chance_two_in_a_row_isolate_and_the_third_convicts_whoever_ran_alone() -> None:
    quarantine = Quarantine()
    assert quarantine.executor_lost(suspects(1, 2)) is None
    assert quarantine.allowed is None
    assert quarantine.executor_lost(suspects(1, 2)) is None
    assert quarantine.allowed == {1}
    assert quarantine.executor_lost(suspects(1)) == 1
    assert quarantine.allowed == {2}


def test_a_finished_step_between_two_losses_means_chance_again() -> None:
    quarantine = Quarantine()
    quarantine.executor_lost(suspects(1, 2))
    quarantine.step_finished(suspects(1, 2))
    assert quarantine.executor_lost(suspects(1, 2)) is None
    assert quarantine.allowed is None


def test_requests_that_end_leave_their_group() -> None:
    quarantine = Quarantine()
    quarantine.step_failed(suspects(1, 2))
    quarantine.ended(RequestId(1))
    assert quarantine.allowed == {2}
    quarantine.ended(RequestId(2))
    assert quarantine.allowed is None


def test_a_failed_step_whose_requests_have_all_gone_suspects_nobody() -> None:
    quarantine = Quarantine()
    assert quarantine.step_failed({}) is None
    assert quarantine.allowed is None


@pytest.mark.parametrize("count", [1, 2, 3, 7, 32])
@given(data=st.data())
def test_every_poison_is_found_and_nobody_else(count: int, data: st.DataObject) -> None:
    living = {RequestId(i) for i in range(count)}
    poisons = data.draw(st.sets(st.sampled_from(sorted(living)), max_size=3))
    quarantine = Quarantine()
    convicted: set[RequestId] = set()
    done: set[RequestId] = set()
    steps = 0
    while living - done:
        steps += 1
        allowed = quarantine.allowed
        running = living - done if allowed is None else (living - done) & allowed
        assert running
        if running & poisons:
            guilty = quarantine.step_failed(dict.fromkeys(sorted(running), 8))
            if guilty is not None:
                convicted.add(guilty)
                living.discard(guilty)
                quarantine.ended(guilty)
        else:
            quarantine.step_finished(dict.fromkeys(running, 8))
            done |= running
    assert convicted == poisons
    assert steps <= (2 + count) * (1 + len(poisons)) + math.ceil(math.log2(count + 1))


def test_who_is_left_of_a_step_that_held_another_is_tried_alone_before_it_is_called_poison() -> None:
    quarantine = Quarantine()
    assert quarantine.step_failed(suspects(3), was_alone=False) is None
    assert quarantine.allowed == {3}
    assert quarantine.step_failed(suspects(3)) == 3


def test_who_is_left_of_a_lost_step_that_held_another_is_tried_alone_before_it_is_called_poison() -> None:
    quarantine = Quarantine()
    assert [quarantine.executor_lost(suspects(3), was_alone=False) for _ in range(3)] == [None, None, None]
    assert quarantine.allowed == {3}
    assert quarantine.executor_lost(suspects(3)) == 3
