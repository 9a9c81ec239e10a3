"""The waiting queue against a plain list that is sorted anew for each question."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncpage.core.policy import Fcfs, LongestPrefix, Policy, Priority
from asyncpage.core.sampling import SamplingParams
from asyncpage.core.sequence import Sequence
from asyncpage.core.waiting_queue import WaitingQueue
from asyncpage.errors import UsageError
from asyncpage.messages import RequestId, RequestOptions


def make(arrival: int, level: int = 0) -> Sequence:
    return Sequence(
        request=RequestId(100 + arrival),
        tokens=array("i", [1]),
        prompt_tokens=1,
        limit=2,
        arrival=arrival,
        root=b"",
        names=(),
        sampling=SamplingParams(),
        options=RequestOptions(priority=level),
        seed=0,
        end_token_ids=(),
        bad_word_ids=(),
    )


ORDERS: dict[type[Policy], Callable[[Sequence, int], Any]] = {
    Fcfs: lambda sequence, hits: sequence.arrival,
    Priority: lambda sequence, hits: (sequence.options.priority, sequence.arrival),
    LongestPrefix: lambda sequence, hits: (-hits, sequence.arrival),
}


class _QueueMachine(RuleBasedStateMachine):
    """Requests come, are let in, are sent back, leave, are parked; the oracle keeps sets and counts by hand."""

    policy: type[Policy]

    def __init__(self) -> None:
        super().__init__()
        self.bound = 0
        self.queue = WaitingQueue(self.policy(), 0)
        self.order = ORDERS[self.policy]
        self.waiting: dict[Sequence, int] = {}  # with the hits that were told
        self.parked: set[Sequence] = set()
        self.let_in_before: dict[Sequence, int] = {}  # admissions when it first came
        self.running: list[Sequence] = []
        self.admissions = 0

    @precondition(lambda self: not self.let_in_before)
    @rule(bound=st.integers(0, 4))
    def begin(self, bound: int) -> None:
        self.bound = bound
        self.queue = WaitingQueue(self.policy(), bound)
        self.admissions = 0

    @rule(level=st.integers(-1, 1), count=st.integers(1, 12))
    def come(self, level: int, count: int) -> None:
        for _ in range(count):
            sequence = make(len(self.let_in_before), level)
            self.let_in_before[sequence] = self.admissions
            self.waiting[sequence] = 0
            self.queue.put(sequence)

    @rule(count=st.integers(1, 3))
    def let_in(self, count: int) -> None:
        for sequence in self.queue.offered(count):
            self.leave(sequence)
            self.queue.admitted()
            self.admissions += 1
            self.running.append(sequence)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def send_back(self, data: st.DataObject) -> None:
        sequence = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        assert not self.queue.remove(sequence)
        self.waiting[sequence] = 0
        self.queue.put(sequence)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from(sorted(self.waiting, key=lambda s: s.arrival))))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), hits=st.integers(0, 3), count=st.integers(1, 20))
    def hits_change(self, data: st.DataObject, hits: int, count: int) -> None:
        for _ in range(count):
            sequence = data.draw(st.sampled_from(sorted(self.let_in_before, key=lambda s: s.arrival)))
            self.queue.rekey(sequence, hits)
            if sequence in self.waiting:
                self.waiting[sequence] = hits

    @precondition(lambda self: self.let_in_before)
    @rule(data=st.data(), is_parked=st.booleans(), count=st.integers(1, 5))
    def park(self, data: st.DataObject, is_parked: bool, count: int) -> None:
        for _ in range(count):
            sequence = data.draw(st.sampled_from(sorted(self.let_in_before, key=lambda s: s.arrival)))
            if is_parked:
                self.queue.park(sequence)
                self.parked |= {sequence} & self.waiting.keys()
            else:
                self.queue.unpark(sequence)
                self.parked.discard(sequence)

    def leave(self, sequence: Sequence) -> None:
        assert self.queue.remove(sequence)
        assert not self.queue.remove(sequence)
        del self.waiting[sequence]
        self.parked.discard(sequence)

    @invariant()
    def offers_what_a_sort_would(self) -> None:
        assert list(self.queue) == sorted(self.waiting, key=lambda s: self.order(s, self.waiting[s]))
        assert len(self.queue) == len(self.waiting)
        passed_over = [s for s, before in self.let_in_before.items() if self.bound < self.admissions - before]
        last_overdue = max((s.arrival for s in passed_over if self.bound), default=-1)
        awake = self.waiting.keys() - self.parked
        overdue = sorted((s for s in awake if s.arrival <= last_overdue), key=lambda s: s.arrival)
        others = sorted(awake - set(overdue), key=lambda s: self.order(s, self.waiting[s]))
        for most in (0, 1, 3, 1000):
            assert self.queue.offered(most) == [*overdue, *others][:most]
        allowed = frozenset(s.request for s in self.let_in_before if s.arrival % 3 == 0)
        assert self.queue.offered(2, allowed) == [s for s in [*overdue, *others] if s.request in allowed][:2]


class FcfsMachine(_QueueMachine):
    policy = Fcfs


class PriorityMachine(_QueueMachine):
    policy = Priority


class LongestPrefixMachine(_QueueMachine):
    policy = LongestPrefix


for machine in (FcfsMachine, PriorityMachine, LongestPrefixMachine):
    machine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestFcfs = FcfsMachine.TestCase
TestPriority = PriorityMachine.TestCase
TestLongestPrefix = LongestPrefixMachine.TestCase


@pytest.mark.parametrize("bound", [1, 7, 256])
def test_a_hostile_stream_of_better_newcomers_passes_over_somebody_no_more_often_than_the_bound(bound: int) -> None:
    queue = WaitingQueue(Priority(), bound)
    victim = make(0, level=9)
    queue.put(victim)
    let_in = 0
    for arrival in range(1, 2000):
        queue.put(make(arrival, level=-arrival))
        chosen = queue.offered(1)[0]
        if chosen is victim:
            break
        queue.remove(chosen)
        queue.admitted()
        let_in += 1
    assert let_in == bound + 1


def test_a_line_of_passed_over_requests_is_served_oldest_first_before_any_newcomer() -> None:
    queue = WaitingQueue(Priority(), 10)
    for arrival in range(5):
        queue.put(make(arrival, level=9 - arrival))
    served = []
    for arrival in range(5, 25):
        queue.put(make(arrival, level=-1))
        chosen = queue.offered(1)[0]
        queue.remove(chosen)
        queue.admitted()
        served.append(chosen.arrival)
    # 11 newcomers are let in, then the five that have seen them all, then who came before one of those 11, in order
    assert served == [*range(5, 16), *range(5), *range(16, 20)]


def test_without_a_bound_the_stream_passes_over_it_for_ever() -> None:
    queue = WaitingQueue(Priority())
    victim = make(0, level=9)
    queue.put(victim)
    for arrival in range(1, 1000):
        queue.put(make(arrival))
        chosen = queue.offered(1)[0]
        assert chosen is not victim
        queue.remove(chosen)
        queue.admitted()


def test_first_come_first_served_stays_so_beyond_the_bound_and_for_who_is_sent_back() -> None:
    queue = WaitingQueue(Fcfs(), 2)
    made = [make(arrival) for arrival in range(20)]
    for sequence in made:
        queue.put(sequence)
    for sequence in made[:5]:
        assert queue.offered(1) == [sequence]
        queue.remove(sequence)
        queue.admitted()
    queue.put(made[3])
    assert queue.offered(3) == [made[3], made[5], made[6]]


@pytest.mark.parametrize("key", [(), (7,), 7, (5, 3)])
def test_a_policy_whose_key_does_not_end_with_the_arrival_is_refused_and_nothing_is_put(key: Any) -> None:
    class Careless(Fcfs):
        name = "careless"

        def key(self, sequence: Sequence) -> Any:
            return key

    queue = WaitingQueue(Careless())
    with pytest.raises(UsageError, match=r"'careless' gave request 101 the key .* ends with its arrival, 1;"):
        queue.put(make(1))
    assert len(queue) == 0
    assert queue.offered(9) == []
