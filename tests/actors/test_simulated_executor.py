"""The executor without a model: whose turn it is to sample, what is drawn, and when the answer comes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from asyncpage.actors.simulated_executor import SimulatedExecutor
from asyncpage.core.sampling import SamplingParams
from asyncpage.core.step_latency import StepLatency
from asyncpage.errors import ProtocolError
from asyncpage.messages import Constraint, NewRow, Pooling, RequestId, Shutdown, Step, StepDone
from asyncpage.testing.clock import FakeClock
from asyncpage.testing.toy_runner import toy_handshake

VOCAB = 1000


class Inbox:
    def __init__(self) -> None:
        self.done: list[StepDone] = []

    def send(self, message: object) -> None:
        assert isinstance(message, StepDone)
        self.done.append(message)


def executor(latency: StepLatency | None = None) -> tuple[SimulatedExecutor, Inbox, FakeClock]:
    inbox, clock = Inbox(), FakeClock()
    made = SimulatedExecutor(toy_handshake(vocab_size=VOCAB), inbox, latency, first_token=10, end_token=900)
    made.started(clock)
    return made, inbox, clock


def column(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def new_row(
    row: int, tokens: int, computed: int = 0, *, seed: int = 7, prompt: int | None = None, **sampling: object
) -> NewRow:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    data = np.arange(tokens, dtype="<i4").tobytes()
    return NewRow(row, RequestId(row), data, prompt or tokens, computed, (b"",), params, seed)


def step(number: int, rows: tuple[int, ...], counts: tuple[int, ...], *, epoch: int = 1, **changes: object) -> Step:
    removed = column(*changes.pop("removed", ()))  # type: ignore[misc]
    return Step(number, epoch, column(*rows), column(*counts), removed=removed, **changes)  # type: ignore[arg-type]


def answers(done: StepDone) -> dict[int, int]:
    assert done.counts.tolist() == [1] * len(done.rows)
    return dict(zip(done.rows.tolist(), done.tokens.tolist(), strict=True))


def test_a_row_samples_in_the_step_in_which_it_has_caught_up() -> None:
    made, inbox, _ = executor()
    made.receive(step(1, (0, 1), (5, 3), added=(new_row(0, 8), new_row(1, 3))))
    made.receive(step(2, (0, 1), (2, 1)))
    made.receive(step(3, (0, 1), (1, 1)))
    assert [done.rows.tolist() for done in inbox.done] == [[1], [1], [0, 1]]
    assert all(10 <= token < 900 for done in inbox.done for token in done.tokens.tolist())


def test_a_row_that_is_to_be_pooled_gets_a_vector_of_its_prompt_and_samples_nothing() -> None:
    made, inbox, _ = executor()
    pooled = [replace(new_row(row, 6), pooling=Pooling("mean")) for row in (0, 1)]
    made.receive(step(1, (0, 1, 2), (6, 4, 3), added=(*pooled, new_row(2, 3))))
    made.receive(step(2, (1, 2), (2, 1)))
    made.receive(step(3, (2,), (1,), removed=(0, 1)))
    assert [done.rows.tolist() for done in inbox.done] == [[2], [2], [2]]
    [first], [second] = inbox.done[0].pooled, inbox.done[1].pooled
    assert (first.row, second.row, inbox.done[2].pooled) == (0, 1, ())
    assert first.embedding == second.embedding  # of equal prompts
    assert np.linalg.norm(np.frombuffer(first.embedding, dtype="<f4")) == pytest.approx(1)


def test_any_order_of_steps_samples_the_rows_that_a_count_by_hand_says() -> None:
    chance = Random(5)
    made, inbox, _ = executor()
    known: dict[int, int] = {}
    computed: dict[int, int] = {}
    tokens: dict[int, list[int]] = {}
    for number in range(1, 800):
        removed = tuple(row for row in known if chance.random() < 0.02)
        for row in removed:
            del known[row], computed[row]
        added = []
        for row in range(100):
            if row not in known and chance.random() < 0.02:
                length, done = chance.randint(2, 30), 0
                if chance.random() < 0.3:
                    done = chance.randrange(length)
                known[row], computed[row] = length, done
                added.append(new_row(row, length, done, seed=row + 1000 * number))
                tokens[row] = []
        chosen = [row for row in known if chance.random() < 0.9 or number % 7]
        counts = [chance.choice((1, known[row] - computed[row])) for row in chosen]
        made.receive(step(number, tuple(chosen), tuple(counts), removed=removed, added=tuple(added)))
        expected = []
        for row, count in zip(chosen, counts, strict=True):
            computed[row] += count
            if computed[row] == known[row]:
                known[row] += 1
                expected.append(row)
        found = inbox.done[-1]
        assert (found.number, found.rows.tolist()) == (number, expected)
        for row, token in answers(found).items():
            tokens[row].append(token)
    assert max(map(len, tokens.values())) > 20
    assert len({tuple(drawn[:8]) for drawn in tokens.values() if len(drawn) >= 8}) > 20  # seeds tell rows apart


def test_a_rows_tokens_are_the_same_beside_others_and_after_a_preemption() -> None:
    alone, inbox, _ = executor()
    alone.receive(step(1, (3,), (4,), added=(new_row(3, 4, seed=99),)))
    for number in range(2, 12):
        alone.receive(step(number, (3,), (1,)))
    expected = [answers(done)[3] for done in inbox.done]

    beside, inbox, _ = executor()
    beside.receive(step(1, (0, 3), (2, 4), added=(new_row(0, 2), new_row(3, 4, seed=99))))
    for number in range(2, 5):
        beside.receive(step(number, (0, 3), (1, 1)))
    beside.receive(step(5, (0,), (1,), removed=(3,)))
    beside.receive(step(6, (8,), (6,), added=(new_row(8, 8, 0, seed=99, prompt=4),)))
    beside.receive(step(7, (8,), (2,)))
    for number in range(8, 12):
        beside.receive(step(number, (8, 0), (1, 1)))
    found = [answers(done)[3] for done in inbox.done[:4]] + [answers(done)[8] for done in inbox.done[6:]]
    assert found == expected[: len(found)]


def test_greedy_rows_answer_by_their_prompts_and_others_by_their_seeds() -> None:
    made, inbox, _ = executor()
    rows = (
        new_row(0, 5, seed=1, temperature=0.0),
        new_row(1, 5, seed=2, temperature=0.0),
        new_row(2, 6, seed=2, temperature=0.0),
        new_row(3, 5, seed=1),
        new_row(4, 5, seed=2),
    )
    made.receive(step(1, (0, 1, 2, 3, 4), (5, 5, 6, 5, 5), added=rows))
    drawn = answers(inbox.done[-1])
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[3] != drawn[4]


def test_a_greater_epoch_forgets_the_rows_and_a_step_without_rows_is_answered() -> None:
    made, inbox, _ = executor()
    made.receive(step(1, (0,), (3,), added=(new_row(0, 3),)))
    made.receive(step(2, (), ()))
    made.receive(step(3, (0,), (2,), epoch=2, added=(new_row(0, 2),)))
    assert [(done.number, done.epoch, done.rows.tolist()) for done in inbox.done] == [
        (1, 1, [0]),
        (2, 1, []),
        (3, 2, [0]),
    ]


def test_a_step_beyond_what_a_row_knows_is_an_error() -> None:
    made, _, _ = executor()
    with pytest.raises(ProtocolError, match="row 0"):
        made.receive(step(1, (0,), (4,), added=(new_row(0, 3),)))


def test_logprobs_are_columns_of_a_distribution_when_a_row_asks() -> None:
    made, inbox, _ = executor()
    made.receive(step(1, (0, 1), (3, 3), added=(new_row(0, 3, logprobs=4), new_row(1, 3))))
    (done,) = inbox.done
    assert done.logprobs is not None
    assert done.logprobs.top_ids.shape == done.logprobs.top_logprobs.shape == (2, 4)
    assert done.logprobs.top_ids[:, 0].tolist() == done.tokens.tolist()
    assert done.logprobs.token_logprobs.tolist() == done.logprobs.top_logprobs[:, 0].tolist()
    assert (np.diff(done.logprobs.top_logprobs) < 0).all()
    assert (np.exp(done.logprobs.top_logprobs).sum(axis=1) <= 1).all()
    assert done.logprobs.ranks.tolist() == [1, 1]
    made.receive(step(2, (1,), (1,), removed=(0,)))
    assert inbox.done[-1].logprobs is None


def test_a_row_that_wants_prompt_logprobs_fails_alone() -> None:
    made, inbox, _ = executor()
    made.receive(step(1, (0, 1), (3, 3), added=(new_row(0, 3, prompt_logprobs=1), new_row(1, 3))))
    (done,) = inbox.done
    assert done.rows.tolist() == [1]
    assert [row for row, _ in done.failed] == [0]
    made.receive(step(2, (1,), (1,), removed=(0,)))
    assert inbox.done[-1].failed == ()


def test_a_row_that_follows_a_grammar_fails_alone() -> None:
    made, inbox, _ = executor()
    constrained = replace(new_row(0, 3, prompt_logprobs=1), constraint=Constraint(b"digest", b"network"))
    also = replace(new_row(2, 3), constraint=Constraint(b"digest", b"network"))
    made.receive(step(1, (0, 1, 2), (3, 3, 3), added=(constrained, new_row(1, 3), also)))
    (done,) = inbox.done
    assert done.rows.tolist() == [1]
    assert [row for row, _ in done.failed] == [0, 2]
    assert "grammar" in dict(done.failed)[2]


LATENCY = StepLatency(base_s=1.0, per_token_s=0.1, per_context_s=0.01, per_row_s=0.001, gap_s=0.5, gap_per_row_s=0.25)


def test_an_answer_comes_after_what_the_step_costs() -> None:
    made, inbox, clock = executor(LATENCY)
    made.receive(step(1, (0, 1), (8, 3), added=(new_row(0, 8), new_row(1, 3))))
    first_s = 0.5 + 1.0 + 0.1 * 11 + 0.01 * 11 + 0.001 * 2
    assert clock.armed() == pytest.approx((first_s,))
    clock.advance(first_s)
    assert [done.number for done in inbox.done] == [1]
    made.receive(step(2, (0, 1), (1, 1)))  # 9 + 4 tokens of context, behind an answer about two rows
    second_s = 0.5 + 0.25 * 2 + 1.0 + 0.1 * 2 + 0.01 * 13 + 0.001 * 2
    assert clock.armed() == pytest.approx((second_s,))
    clock.advance(second_s)
    assert inbox.done[-1].elapsed_us == round(1e6 * (second_s - 1.0))


def test_steps_sent_ahead_are_answered_one_after_another_without_gaps() -> None:
    made, inbox, clock = executor(LATENCY)
    began = clock.now()
    made.receive(step(1, (0,), (4,), added=(new_row(0, 4),)))
    made.receive(step(2, (0,), (1,)))
    times = []
    while clock.armed():
        clock.advance(clock.armed()[0])
        times.append(clock.now() - began)
    first_s = 0.5 + 1.0 + 0.1 * 4 + 0.01 * 4 + 0.001
    assert times == pytest.approx([first_s, first_s + 1.0 + 0.1 + 0.01 * 5 + 0.001])
    assert [done.number for done in inbox.done] == [1, 2]


def test_a_step_without_rows_takes_no_time_of_the_device() -> None:
    made, inbox, clock = executor(LATENCY)
    made.receive(step(1, (), ()))
    assert clock.armed() == (0.0,)
    clock.advance(0.0)
    assert [(done.number, done.rows.tolist()) for done in inbox.done] == [(1, [])]


async def test_a_closed_executor_answers_no_more() -> None:
    made, inbox, clock = executor(LATENCY)
    assert await made.launch_first() == toy_handshake(vocab_size=VOCAB)
    assert made.state == "ready"
    made.receive(step(1, (0,), (4,), added=(new_row(0, 4),)))
    made.receive(Shutdown())
    await made.closed()
    assert made.state == "closed"
    assert clock.armed() == ()
    assert inbox.done == []
