"""What steps take, by their tokens."""

import numpy as np
import pytest

from asyncpage.core.step_costs import StepCosts


def learned(steps: dict[int, list[int]]) -> StepCosts:
    costs = StepCosts()
    for tokens, times in steps.items():
        for step_us in times:
            costs.learn(tokens, step_us)
    return costs


def curve(costs: StepCosts, *tokens: int) -> list[float]:
    return costs.step_us(np.array(tokens, dtype=np.float64)).tolist()


def test_the_median_of_the_last_steps_of_a_size_stands_and_others_are_read_off_between() -> None:
    costs = learned({1: [100, 900, 110], 5: [300]})
    assert curve(costs, 1, 3, 5, 9) == [110, 205, 300, 300]
    for _ in range(9):
        costs.learn(1, 200)
    assert curve(costs, 1) == [200]


def test_great_sizes_share_a_quarter_of_an_octave() -> None:
    costs = learned({1: [10], 64: [100], 79: [300], 80: [500]})
    assert curve(costs, 64, 80) == [300, 500]  # of two steps the later median, of the next quarter its own


def test_an_outlier_among_few_steps_is_evened_out_with_what_it_contradicts() -> None:
    costs = learned({1: [100] * 9, 2: [900], 3: [300], 4: [310] * 8})
    levels = curve(costs, 1, 2, 3, 4)
    assert levels == sorted(levels)
    assert levels[0] == 100
    assert levels[1] == levels[2] == levels[3] == pytest.approx((900 + 300 + 8 * 310) / 10)


def test_a_size_is_due_before_it_was_seen_and_the_more_rarely_the_more_often_it_was() -> None:
    costs = StepCosts()
    assert costs.is_due(1)
    pauses = []
    for _ in range(4):
        costs.learn(1, 100)
        pauses.append(0)
        while not costs.is_due(1):
            costs.learn(9, 100)
            pauses[-1] += 1
    assert pauses == [5, 17, 37, 65]


def test_a_size_that_never_comes_is_asked_for_more_and_more_rarely() -> None:
    costs = StepCosts()
    asked = []
    for step in range(400):
        if costs.ask(2):
            asked.append(step)
        costs.learn(1, 100)
    assert asked == [0, 5, 22, 59, 124, 225, 370]
    costs.learn(2, 100)
    assert not costs.ask(2)
