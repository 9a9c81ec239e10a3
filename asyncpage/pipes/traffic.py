"""What passes the mailboxes of a house while somebody watches: messages by kind, depths, and the steps they tell of.

A lookout starts and ends it. It is shown every message when its receiver's turn begins and keeps numbers only. Nobody
sends it anything and no actor knows of it, so an engine that is not watched pays nothing.

INVARIANT: at most `MOST_STEPS` steps are kept, and no message.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from asyncpage.messages import ExecutorLost, Granted, Step, StepDone, StepFailed
from asyncpage.pipes.mailbox import Mailbox
from asyncpage.records import record

MOST_STEPS = 512
"""What a timeline shows at most, and more than run between two looks of a real model."""


@record(frozen=True, slots=True)
class StepMark:
    """A step that is back. `at_s`: when, on the engine's clock. `prefill_tokens`: of rows that computed several.

    `decode_tokens`: of rows that computed one. `preempted`: rows that had to make way for it, or before it since the
    last step.
    """

    number: int
    at_s: float
    rows: int
    prefill_tokens: int
    decode_tokens: int
    preempted: int
    elapsed_us: int


@record(frozen=True, slots=True)
class Passed:
    """A mailbox: what waits now, the most that waited at once since the last look, and all that passed, by kind."""

    waiting: int
    deepest: int
    capacity: int
    messages: Mapping[str, int]


class Traffic:
    """The mailboxes of one house, by their actors' names. `now`: the engine's clock."""

    def __init__(self, boxes: Mapping[str, Mailbox], now: Callable[[], float]) -> None:
        self._boxes = boxes
        self._now = now
        self._steps: deque[StepMark] = deque(maxlen=MOST_STEPS)
        self._under_way: dict[tuple[int, int], tuple[int, int, int, int]] = {}
        self._preempted = 0
        self._passed: dict[str, Counter[type]] = {}
        self._deepest: dict[str, int] = {}

    def start(self) -> None:
        """Watch from now on, with nothing counted yet."""
        self._steps.clear()
        self._under_way.clear()
        self._preempted = 0
        self._passed = {name: Counter() for name in self._boxes}
        self._deepest = dict.fromkeys(self._boxes, 0)
        for name, box in self._boxes.items():
            box.watch(partial(self._see, name))

    def stop(self) -> None:
        """Watch no longer."""
        for box in self._boxes.values():
            box.watch(None)

    def steps(self) -> tuple[StepMark, ...]:
        """The last ones that came back, oldest first."""
        return tuple(self._steps)

    def take(self) -> dict[str, Passed]:
        """Every mailbox at this moment; the deepest is counted anew from here."""
        found = {
            name: Passed(
                len(box),
                max(len(box), self._deepest[name]),
                box.capacity,
                {kind.__name__: count for kind, count in self._passed[name].items()},
            )
            for name, box in self._boxes.items()
        }
        self._deepest = dict.fromkeys(self._boxes, 0)
        return found

    def _see(self, name: str, waiting: deque[object]) -> None:
        self._deepest[name] = max(self._deepest[name], len(waiting))
        passed = self._passed[name]
        for message in waiting:
            kind = type(message)
            passed[kind] += 1
            if kind is Step:
                self._sent(message)  # type: ignore[arg-type]
            elif kind is StepDone:
                self._returned(message)  # type: ignore[arg-type]
            elif kind is Granted:
                self._preempted += len(message.victims)  # type: ignore[attr-defined]
            elif kind is ExecutorLost or kind is StepFailed:
                self._under_way.clear()

    def _sent(self, step: Step) -> None:
        rows, tokens = len(step.rows), int(step.counts.sum())
        alone = int(np.count_nonzero(step.counts == 1))
        self._under_way[step.epoch, step.number] = (rows, tokens - alone, alone, self._preempted)
        self._preempted = 0

    def _returned(self, done: StepDone) -> None:
        known = self._under_way.pop((done.epoch, done.number), None)
        if known is not None:
            rows, prefill, decode, preempted = known
            mark = StepMark(done.number, self._now(), rows, prefill, decode, preempted, done.elapsed_us)
            self._steps.append(mark)
