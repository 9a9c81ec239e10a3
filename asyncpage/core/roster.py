"""Every accepted request and where it stands: held behind a sibling, waiting in policy order, or running in a row.

The scheduler owns one and asks it who may be offered a place; it moves requests, it never ends them by itself.

INVARIANT: a request of the roster is in exactly one of the three places; the adapters of those that run have slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import replace

from asyncpage.core.adapter_slots import AdapterSlots
from asyncpage.core.policy import Policy
from asyncpage.core.quarantine import Quarantine
from asyncpage.core.running import Running
from asyncpage.core.sequence import Sequence
from asyncpage.core.waiting_queue import WaitingQueue
from asyncpage.messages import Admission, Candidate, RequestId


class Roster:
    """Requests by id, the waiting queue, the running rows and the quarantine over them."""

    def __init__(
        self,
        running: Running,
        policy: Policy,
        *,
        rows: int,
        block_size: int,
        fairness_bound: int,
        adapter_slots: int = 0,
    ) -> None:
        self.running = running
        self._adapters = AdapterSlots(adapter_slots)
        self.quarantine = Quarantine()
        self._rows = rows
        self._block_size = block_size
        self._waiting = WaitingQueue(policy, fairness_bound)
        self._sequences: dict[RequestId, Sequence] = {}
        self._leaders: dict[RequestId, Sequence] = {}  # those that others are held behind

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(list(self._sequences.values()))

    @property
    def waiting(self) -> int:
        """Requests that have no row, those held behind a sibling included."""
        return len(self._sequences) - len(self.running)

    def find(self, request: RequestId) -> Sequence | None:
        """The living request of this id."""
        return self._sequences.get(request)

    def add(self, made: Items[Sequence]) -> None:
        """A prompt's choices are accepted: the first waits, the others are held until its prompt is computed."""
        first = made[0]
        self._waiting.put(first)  # a policy that breaks its contract is found out here, before anything is kept
        for sequence in made:
            self._sequences[sequence.request] = sequence
        if first.children:
            self._leaders[first.request] = first
            if first.wants_prompt_logprobs:  # each choice reports its prompt's logprobs, so each computes it
                self.let_children_wait(first)

    def remove(self, sequence: Sequence) -> int | None:
        """The request is over. Returns the row it leaves empty, if it had one."""
        del self._sequences[sequence.request]
        row = None
        if sequence.row >= 0:
            row = self._close(sequence)
        elif not self._waiting.remove(sequence) and sequence.leader is not None:
            sequence.leader.children = [child for child in sequence.leader.children if child is not sequence]
        self.let_children_wait(sequence)
        self.quarantine.ended(sequence.request)
        return row

    def let_children_wait(self, leader: Sequence) -> None:
        """The leader's prompt is computed, or will not be soon: its siblings need not wait for it any longer."""
        if self._leaders.pop(leader.request, None) is not None:
            for child in leader.children:
                self._waiting.put(child)
            leader.children = []

    def let_served_children_wait(self) -> None:
        """As `let_children_wait`, for every leader whose prompt is computed once the steps that have left are back."""
        for leader in list(self._leaders.values()):
            if leader.row >= 0 and self.running.computed[leader.row] >= leader.prompt_tokens - 1:
                self.let_children_wait(leader)

    def open(self, admission: Admission) -> Sequence:
        """A waiting request moves into the row it was given."""
        sequence = self._sequences[admission.request]
        self._waiting.remove(sequence)
        self._waiting.admitted()
        sequence.adapter_slot = self._adapters.enter(sequence.options.adapter)
        self.running.open(sequence, admission)
        return sequence

    def send_back(self, sequence: Sequence) -> int:
        """A running request waits again, with every token it has got. Returns the row it leaves empty."""
        row = self._close(sequence)
        sequence.extend_names(self._block_size)
        self._waiting.put(sequence)
        self.let_children_wait(sequence)
        return row

    def park(self, requests: Iterable[RequestId]) -> None:
        """These wait for blocks that somebody is computing: do not offer them."""
        for request in requests:
            if (sequence := self._sequences.get(request)) is not None:
                self._waiting.park(sequence)

    def wake(self, requests: Iterable[RequestId]) -> None:
        """What these waited for is there, or will not come: offer them again."""
        for request in requests:
            if (sequence := self._sequences.get(request)) is not None:
                self._waiting.unpark(sequence)

    def wake_all(self) -> None:
        """Nobody computes anything any more."""
        for sequence in self._sequences.values():
            self._waiting.unpark(sequence)

    def rate(self, hits: Iterable[tuple[RequestId, int]]) -> None:
        """So many blocks of each are cached now."""
        for request, blocks in hits:
            if (sequence := self._sequences.get(request)) is not None:
                self._waiting.rekey(sequence, blocks)

    @property
    def may_change(self) -> bool:
        """Whether somebody who waits might be let in, or somebody who runs might have to make way."""
        return bool(self._waiting and len(self.running) < self._rows) or self.quarantine.has_suspects

    def make_way(self) -> list[int]:
        """While suspects are tried, whoever is not one of them waits again. Returns the rows they leave empty.

        Those that were cleared would otherwise run on beside the next suspects, and none would ever be alone.
        """
        allowed = self.quarantine.allowed
        if allowed is None:
            return []
        return [self.send_back(one) for one in self.running.occupants() if one.request not in allowed]

    def candidates(self, budget_tokens: int) -> tuple[Candidate, ...]:
        """Waiting requests in policy order, as many as there are free rows and as could share the budget."""
        most = min(self._rows - len(self.running), budget_tokens)
        if most <= 0 or not len(self._waiting):
            return ()
        lets = self._adapters.pick().lets if self._adapters.slots else None
        return tuple(map(self._with_fork, self._waiting.offered(most, self.quarantine.allowed, lets)))

    def _close(self, sequence: Sequence) -> int:
        self._adapters.leave(sequence.options.adapter)
        return self.running.close(sequence)

    def _with_fork(self, sequence: Sequence) -> Candidate:
        """A choice that has not run yet shares its sibling's blocks once that one has computed the prompt."""
        candidate, leader = sequence.as_candidate(), sequence.leader
        if leader is None or leader.row < 0 or sequence.has_started or sequence.wants_prompt_logprobs:
            return candidate
        if self.running.computed[leader.row] < sequence.prompt_tokens - 1 or sequence.prompt_tokens < 2:
            return candidate
        return replace(candidate, fork_row=leader.row)
