"""Finds the request that breaks a step, by running suspects in ever smaller groups.

The scheduler tells it of every failed or lost step and asks which requests may run. A step that raises halves its
requests once, then they run one at a time; a lost executor is first put down to chance, and after a second loss in a
row the lost step's requests run one at a time. A request that fails alone is the poison. A suspect is cleared when
it has got past the point where it failed.

INVARIANT: only a request whose step failed while it ran alone is ever called poison.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from asyncpage.messages import RequestId


@dataclass(slots=True)
class Quarantine:
    """Which requests may run while one of them is suspected. No suspects: everybody."""

    _groups: deque[dict[RequestId, int]] = field(default_factory=deque)
    _losses: int = 0

    @property
    def allowed(self) -> frozenset[RequestId] | None:
        """The requests that may run now; None means all."""
        return frozenset(self._groups[0]) if self._groups else None

    @property
    def has_suspects(self) -> bool:
        """Whether some are run apart from the others."""
        return bool(self._groups)

    @property
    def is_alert(self) -> bool:
        """Whether `step_finished` has anything to learn: there are suspects, or an executor was lost lately."""
        return bool(self._groups or self._losses)

    def step_failed(self, suspects: Mapping[RequestId, int], *, was_alone: bool = True) -> RequestId | None:
        """A forward raised. `suspects`: the step's living requests, each with the computed tokens it was to reach.

        `was_alone`: a single suspect really was alone, also without requests that have ended or lost their row since.
        Returns the poison, when the step held one request only.
        """
        was_halved = bool(self._groups)
        self._leave_front(suspects)
        if len(suspects) == 1 and was_alone:
            return next(iter(suspects))
        items = list(suspects.items())
        if was_halved:
            self._groups.extendleft({request: goal} for request, goal in reversed(items))
        else:
            middle = len(items) // 2
            self._groups.extendleft((dict(items[middle:]), dict(items[:middle])))
        self._skip_cleared()
        return None

    def executor_lost(self, suspects: Mapping[RequestId, int], *, was_alone: bool = True) -> RequestId | None:
        """The executor died with these requests in flight. Returns the poison, at the third loss in a row at least.

        `was_alone`: as in `step_failed`.

        An executor that dies with nothing in flight is nobody's fault.
        """
        if not suspects:
            return None
        self._losses += 1
        if self._losses == 1:
            return None
        self._leave_front(suspects)
        if self._losses > 2 and len(suspects) == 1 and was_alone:
            return next(iter(suspects))
        self._groups.extendleft({request: goal} for request, goal in reversed(list(suspects.items())))
        return None

    def step_finished(self, progress: Mapping[RequestId, int]) -> None:
        """A step came back; `progress`: computed tokens of its requests."""
        self._losses = 0
        if self._groups:
            front = self._groups[0]
            for request, computed in progress.items():
                if computed >= front.get(request, computed + 1):
                    del front[request]
            self._skip_cleared()

    def ended(self, request: RequestId) -> None:
        """A request is over, whatever the reason."""
        for group in self._groups:
            group.pop(request, None)
        self._skip_cleared()

    def _leave_front(self, suspects: Mapping[RequestId, int]) -> None:
        for group in self._groups:
            for request in suspects:
                group.pop(request, None)
        self._skip_cleared()

    def _skip_cleared(self) -> None:
        while self._groups and not self._groups[0]:
            self._groups.popleft()
