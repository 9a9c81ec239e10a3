"""Who is served first: a policy is a sort key, and the waiting queue keeps requests in its order.

The scheduler puts requests in and offers them from the front. Running rows are served in the same order and
preempted from its end, so the first request in the order can always finish.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from asyncpage.core.sequence import Sequence

Policy = Callable[[Sequence], tuple[int, int]]
"""A key, smallest first; it must not change while the request lives and no two requests may share one."""


def fcfs(sequence: Sequence) -> tuple[int, int]:
    """First come, first served; a preempted request is older than whoever waits, so it goes to the head."""
    return (0, sequence.arrival)


def priority(sequence: Sequence) -> tuple[int, int]:
    """The smallest `priority` first, then the oldest."""
    return (sequence.options.priority, sequence.arrival)


POLICIES: dict[str, Policy] = {"fcfs": fcfs, "priority": priority}


class WaitingQueue:
    """Requests that wait for a row, in policy order."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._queue: list[tuple[tuple[int, int], Sequence]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for _, sequence in self._queue)

    def put(self, sequence: Sequence) -> None:
        """Let it wait at its place in the order."""
        insort(self._queue, (self._policy(sequence), sequence), key=_key)

    def remove(self, sequence: Sequence) -> bool:
        """Take it out; False when it does not wait here."""
        at = bisect_left(self._queue, self._policy(sequence), key=_key)
        if at < len(self._queue) and self._queue[at][1] is sequence:
            del self._queue[at]
            return True
        return False


def _key(entry: tuple[tuple[int, int], Sequence]) -> tuple[int, int]:
    return entry[0]
