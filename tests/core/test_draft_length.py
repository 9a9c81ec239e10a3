"""How many drafts are tried: on machines whose costs are made up and texts that are, against every other choice."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from asyncpage.core.draft_length import DraftLengths
from asyncpage.messages import EMPTY, Int32

MOST = 7
Cost = Callable[[int], float]  # microseconds of a step of so many tokens


def vector_machine(tokens: int) -> float:
    """A token costs what reading the weights does, several cost twice that and little each: a CPU."""
    return 10_000 if tokens == 1 else 20_000 + 700 * tokens


def flat_machine(tokens: int) -> float:
    """Reading the weights is all, up to a hundred tokens: an accelerator."""
    return 8_000 + max(0, tokens - 100) * 80


class ColdMachine:
    """Two tokens cost hardly more than one, each further one does; the first step of a size takes twice as long."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def __call__(self, tokens: int) -> float:
        warm = 38_000 + 1_000 * min(tokens - 1, 1) + 5_000 * max(0, tokens - 2)
        first = 1 if tokens in self.seen else 2
        self.seen.add(tokens)
        return first * warm


class House:
    """Rows that only decode, each with its share of drafts that stand; time passes as the machine says.

    `finds`: whether there are drafts of a row when they are asked for; of all without it.
    """

    def __init__(
        self,
        shares: list[float],
        cost: Cost,
        *,
        draft_us: int = 0,
        most: int = MOST,
        seed: int = 1,
        finds: list[bool] | None = None,
    ) -> None:
        self.finds: Int32 = np.array(finds or [True] * len(shares), dtype=np.int32)
        self.lengths = DraftLengths(len(shares), most)
        self.shares, self.cost, self.draft_us = shares, cost, draft_us
        self.random = np.random.default_rng(seed)
        self.rows: Int32 = np.arange(len(shares), dtype=np.int32)
        self.us, self.tokens, self.steps = 0.0, 0, 0
        self.chosen: list[list[int]] = []

    def step(self, budget: int = 10_000) -> None:
        count = len(self.rows)
        rooms: Int32 = np.full(count, 50, dtype=np.int32)
        chosen = self.lengths.choose(rooms, count, budget)
        drafts = chosen if len(chosen) else np.zeros(count, dtype=np.int32)
        assert int(drafts.sum()) + count <= budget
        self.chosen.append(drafts.tolist())
        drafts = drafts * self.finds
        stands = self.random.random((count, int(drafts.max(initial=0)))) < np.array(self.shares)[:, None]
        stood = np.array([
            int(np.logical_and.accumulate(own[:most]).sum()) for own, most in zip(stands, drafts.tolist(), strict=True)
        ], dtype=np.int32).reshape(count)  # fmt: skip
        tokens, draft_us = count + int(drafts.sum()), self.draft_us * int(drafts.max(initial=0))
        step_us = int(self.cost(tokens)) + draft_us
        drafted = drafts if drafts.any() else EMPTY
        self.lengths.learn(self.rows, stood + 1, drafted, tokens=tokens, elapsed_us=step_us, draft_us=draft_us)
        self.us += step_us
        self.tokens += count + int(stood.sum())

    def rate(self, steps: int) -> float:
        """Tokens a microsecond over so many steps."""
        self.us, self.tokens = 0.0, 0
        for _ in range(steps):
            self.step()
        return self.tokens / self.us


def best_rate(share: float, rows: int, cost: Cost, draft_us: int = 0) -> float:
    """Of every length that all rows could have."""
    rates = []
    for length in range(MOST + 1):
        tokens = rows * sum(share**place for place in range(length + 1))
        rates.append(tokens / (cost(rows * (1 + length)) + draft_us * length))
    return max(rates)


@pytest.mark.parametrize("cost", [vector_machine, flat_machine])
@pytest.mark.parametrize("draft_us", [0, 1500])
@pytest.mark.parametrize("rows", [1, 4, 40])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.95])
def test_the_rate_comes_near_the_best_that_any_length_has(share: float, rows: int, cost: Cost, draft_us: int) -> None:
    house = House([share] * rows, cost, draft_us=draft_us)
    house.rate(150)
    assert house.rate(600) > 0.85 * best_rate(share, rows, cost, draft_us)


def test_drafts_that_never_stand_cost_less_and_less() -> None:
    house = House([0.0], vector_machine)
    house.rate(200)
    assert house.rate(1000) > 0.98 / vector_machine(1)
    assert any(map(any, house.chosen[-600:]))  # it still looks now and then


def test_a_text_that_begins_to_repeat_itself_is_noticed() -> None:
    house = House([0.0], vector_machine)
    house.rate(300)
    house.shares = [0.97]
    house.rate(600)
    assert house.rate(200) > 0.9 * best_rate(0.97, 1, vector_machine)


def test_a_request_that_comes_anew_tries_drafts_whatever_the_last_one_in_its_row_did() -> None:
    house = House([0.0], vector_machine)
    house.rate(3000)
    house.lengths.open(0)
    house.chosen.clear()
    house.rate(12)
    assert any(map(any, house.chosen))


def test_rows_whose_drafts_stand_get_more_of_them_than_the_others() -> None:
    house = House([0.95, 0.2, 0.95, 0.2], flat_machine)
    house.rate(400)
    mean = np.mean(house.chosen[-200:], axis=0)
    assert min(mean[0], mean[2]) > 4 * max(mean[1], mean[3]) or min(mean[0], mean[2]) > 5
    dear = House([0.95, 0.2, 0.95, 0.2], lambda tokens: 10_000 + 3_000 * tokens)
    dear.rate(400)
    mean = np.mean(dear.chosen[-200:], axis=0)
    assert min(mean[0], mean[2]) > 2 > 0.7 > max(mean[1], mean[3])


def test_the_greater_the_batch_the_fewer_drafts_until_there_are_none() -> None:
    def cost(tokens: int) -> float:
        return 20_000 + max(0, tokens - 16) * 2_500

    lengths = []
    for rows in (1, 8, 16, 64):
        house = House([0.6] * rows, cost)
        house.rate(300)
        lengths.append(float(np.mean(house.chosen[-200:])))
    assert all(more > fewer - 0.05 for more, fewer in itertools.pairwise(lengths))
    assert lengths[0] > 3
    assert lengths[-1] < 0.2


def test_what_drafts_cost_by_their_depth_makes_them_shorter() -> None:
    lengths = []
    for draft_us in (0, 2_000, 9_000):
        house = House([0.8], flat_machine, draft_us=draft_us)
        house.rate(300)
        lengths.append(float(np.mean(house.chosen[-200:])))
    assert lengths[0] > lengths[1] > lengths[2]
    assert lengths[2] < 0.5


def test_a_first_slow_step_does_not_decide_for_ever() -> None:
    house = House([0.3], vector_machine)
    house.cost = lambda tokens: 200_000
    house.step()
    house.cost = vector_machine
    house.rate(200)
    assert house.rate(600) > 0.9 * best_rate(0.3, 1, vector_machine)


@pytest.mark.parametrize("seed", range(8))
def test_the_one_length_that_pays_is_found_though_every_size_was_slow_at_first(seed: int) -> None:
    house = House([0.35], ColdMachine(), draft_us=2_800, seed=seed)
    house.rate(100)
    warm = ColdMachine()
    warm.seen = set(range(100))
    best = best_rate(0.35, 1, warm, 2_800)
    assert best > 1.2 / 38_000
    assert house.rate(600) > 0.92 * best


def test_rows_without_drafts_do_not_keep_those_that_have_some_from_trying_more() -> None:
    """The step of one draft a row, whose cost is looked for, never comes."""
    house = House([0.95] * 4, flat_machine, finds=[True, True, False, False])
    house.rate(200)
    mean = np.mean(house.chosen[-200:], axis=0)
    assert min(mean[:2]) > 5


def test_drafts_keep_to_the_budget_and_to_the_room_that_rows_have() -> None:
    house = House([0.95] * 5, flat_machine)
    for _ in range(100):
        house.step(budget=9)
    assert any(sum(chosen) == 4 for chosen in house.chosen)
    rooms = np.array([0, 1, 2, 50, 0], dtype=np.int32)
    for tokens in (3, 6):  # without drafts, and with one of each
        house.lengths.learn(house.rows[1:4], house.rows[1:4], EMPTY, tokens=tokens, elapsed_us=8_000, draft_us=0)
    chosen = house.lengths.choose(rooms, 3, 10_000)
    assert (chosen <= np.minimum(rooms, MOST)).all()
    assert chosen[3] > 2
    assert house.lengths.choose(rooms, 3, 3) is EMPTY
    assert house.lengths.choose(np.zeros(5, dtype=np.int32), 5, 100) is EMPTY


def test_a_choice_of_none_holds_for_some_steps_and_not_beyond_the_next_look() -> None:
    house = House([0.0], vector_machine)
    held = []
    for _ in range(400):
        house.step()
        if not any(house.chosen[-1]):
            held.append(house.lengths.equal_steps)
    assert set(held) <= set(range(1, 9))
    assert max(held) == 8


def test_the_same_answers_lead_to_the_same_choices() -> None:
    first, second = House([0.5, 0.9], vector_machine), House([0.5, 0.9], vector_machine)
    first.rate(300)
    second.rate(300)
    assert first.chosen == second.chosen
